-- prefix, id, fence, data (JSON). Returns 1, or 0 for a stale holder.
if not held(ARGV[2], ARGV[3]) then return 0 end
emit(ARGV[2], 'log', ARGV[4])
return 1
