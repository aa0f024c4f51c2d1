"""The peer of POST /v1/jobs: a FastAPI handler that does one write to Redis, and nothing else."""

import os
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from redis.asyncio import Redis

app = FastAPI()
store = Redis.from_url(os.environ["DRAFTMILL_REDIS_URL"], decode_responses=True)


@app.post("/v1/jobs")
async def write(body: dict[str, Any]) -> dict[str, Any]:
    await store.hset("bare", mapping={"format": body["format"]})
    return {"id": "bare"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
