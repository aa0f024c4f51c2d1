// Live parts that the pages do without where scripts are off: following a log, resting while nobody looks.
"use strict";

// A page in the background asks for nothing.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.detail.elt.hasAttribute("data-poll")) event.preventDefault();
});

// A form whose answer takes a while says so, and is sent once.
document.addEventListener("submit", (event) => {
  const words = event.target.dataset.busy;
  const button = event.submitter;
  if (!words || !button) return;
  button.textContent = words;
  button.setAttribute("aria-busy", "true");
  setTimeout(() => { button.disabled = true; });
});
// Back from the answer, the form as it was would stay shut.
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

const MAX_LINES = 5000;
const PAUSE = 1000;

function follow(log) {
  const status = document.getElementById("log-status");
  const box = document.getElementById("follow");
  let after = log.dataset.after;

  const toEnd = () => { log.scrollTop = log.scrollHeight; };
  toEnd();
  box.addEventListener("change", () => { if (box.checked) toEnd(); });
  // Whoever scrolls up wants to read; back at the end, it follows again.
  log.addEventListener("scroll", () => {
    box.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  });
  if ("done" in log.dataset) return;

  function connect() {
    const events = new EventSource(`${log.dataset.events}?after=${after}`);
    events.addEventListener("open", () => { status.textContent = "live"; });
    events.addEventListener("line", (event) => {
      // The browser sends this back when it connects again by itself; a new connection of ours asks behind it.
      after = event.lastEventId;
      const following = box.checked;
      // The service wrote and escaped it; the page's policy lets no script in it run.
      log.insertAdjacentHTML("beforeend", event.data);
      while (log.children.length > MAX_LINES) log.firstElementChild.remove();
      if (following) toEnd();
    });
    events.addEventListener("end", () => {
      events.close();
      status.textContent = "ended";
    });
    events.addEventListener("error", () => {
      status.textContent = "connection lost, trying again";
      // Refused rather than broken: the browser gives up, this does not.
      if (events.readyState === EventSource.CLOSED) setTimeout(connect, PAUSE);
    });
    window.addEventListener("pagehide", () => events.close(), { once: true });
  }
  connect();
}

const log = document.getElementById("log");
if (log) follow(log);
