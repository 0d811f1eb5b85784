// graphile-worker on PostgreSQL, with its local queue and batched completion.
const { Logger, makeWorkerUtils, run } = require('graphile-worker')
const bodies = require('./bodies')
const { main, number, workers } = require('./producer')

const connectionString = process.env.BENCH_DATABASE_URL
let utils

main({
  store: 'postgres',
  left: ['SELECT count(*) FROM graphile_worker._private_jobs'],
  workers: {
    fast: workers(__filename, 2, { BENCH_AT_ONCE: '24', BENCH_LOCAL_QUEUE: '500' }),
    sleep: workers(__filename, 2, { BENCH_AT_ONCE: '250', BENCH_LOCAL_QUEUE: '250' }),
    narrow: workers(__filename, 1, { BENCH_AT_ONCE: '4' }),
    default: workers(__filename, 1),
  },
  packages: ['graphile-worker', 'pg'],
  config:
    '2 processes, concurrentJobs 24, localQueue 500, completion and failure in batches; it deletes its rows; ' +
    'addJobs of 1,000; sleepers: 2 x 250',
  setup: async () => {
    const once = await makeWorkerUtils({ connectionString })
    await once.migrate()
    await once.release()
  },
  open: async () => {
    utils = await makeWorkerUtils({ connectionString, maxPoolSize: 20 })
  },
  enqueue: (job) => utils.addJob('work', job),
  enqueueMany: (jobs) => utils.addJobs(jobs.map((payload) => ({ identifier: 'work', payload }))),
  work: async () => {
    const concurrentJobs = number('BENCH_AT_ONCE', 1)
    const worker = { connectionString, concurrentJobs, maxPoolSize: Math.min(concurrentJobs + 2, 20) }
    const size = number('BENCH_LOCAL_QUEUE', 0)
    if (size) Object.assign(worker, { localQueue: { size }, completeJobBatchDelay: 0, failJobBatchDelay: 0 })
    await run({
      preset: { worker },
      taskList: { work: (payload) => bodies.run(payload) },
      logger: new Logger(() => () => {}),
    })
  },
})
