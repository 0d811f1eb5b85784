"""The simplest possible claim in Redis: first in, first out, without fairness, limits or fences.

One call releases a number of leases and takes as many jobs, each with its data and a lease that could expire, as ours
does. The additional cost of ours is the price of fairness, limits and fencing.
"""

from __future__ import annotations

import itertools
import statistics
import time

import redis.asyncio

from bench.dispatcher import offers, per_job_us

CLAIM = """
local now = redis.call('TIME')
for i = 2, #ARGV do
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('ZREM', KEYS[3], ARGV[i])
end
local jobs = redis.call('LPOP', KEYS[1], ARGV[1]) or {}
for i = 1, #jobs do
  local lease = redis.call('INCR', KEYS[4])
  redis.call('HSET', KEYS[2], lease, jobs[i])
  redis.call('ZADD', KEYS[3], now[1] + 15, lease)
  jobs[i] = { lease, jobs[i] }
end
return jobs
"""
GROUP = 4
KEYS = ("plain:line", "plain:leases", "plain:expiries", "plain:counter")


async def cost(url: str, waiting: int, batch: int = 100, calls: int = 200) -> float:
    """Microseconds per job claimed and released: the median of groups of calls, as for ours."""
    server = redis.asyncio.Redis.from_url(url, single_connection_client=True)
    claim = server.register_script(CLAIM)
    jobs = itertools.islice(offers(10), max(waiting, batch * (calls + 1)))
    line = [f"{job.job_id}\0{job.service}\0{job.user_id}\0{job.run}" for job in jobs]
    for first in range(0, len(line), 5_000):
        await server.rpush(KEYS[0], *line[first : first + 5_000])
    taken = await claim(keys=KEYS, args=[batch])
    spent = []
    for _ in range(calls // GROUP):
        began = time.perf_counter()
        for _ in range(GROUP):
            taken = await claim(keys=KEYS, args=[batch, *(lease for lease, _ in taken)])
        spent.append(per_job_us(began, batch * GROUP))
    await server.flushall()
    await server.aclose()
    return statistics.median(spent)
