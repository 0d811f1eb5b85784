// BullMQ on Redis.
const { Queue, Worker } = require('bullmq')
const bodies = require('./bodies')
const { main, number, workers } = require('./producer')

const { hostname, port } = new URL(process.env.BENCH_REDIS_URL)
const connection = { host: hostname, port: Number(port) }
let queue

main({
  store: 'redis',
  left: ['LLEN bull:work:wait', 'LLEN bull:work:active'],
  workers: {
    fast: workers(__filename, 1, { BENCH_AT_ONCE: '100' }),
    sleep: workers(__filename, 2, { BENCH_AT_ONCE: '250' }),
    narrow: workers(__filename, 1, { BENCH_AT_ONCE: '4' }),
    default: workers(__filename, 1),
  },
  packages: ['bullmq', 'ioredis'],
  config: '1 worker process, concurrency 100 (two were slower when it was last tried); addBulk of 1,000; sleepers: 2 x 250',
  open: async () => {
    queue = new Queue('work', { connection })
    await queue.waitUntilReady()
  },
  enqueue: (job) => queue.add('work', job),
  enqueueMany: (jobs) => queue.addBulk(jobs.map((data) => ({ name: 'work', data }))),
  work: async () => {
    new Worker('work', (job) => bodies.run(job.data), { connection, concurrency: number('BENCH_AT_ONCE', 1) })
  },
})
