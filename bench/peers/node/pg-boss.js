// pg-boss on PostgreSQL, in batches of 5,000, with the shortest polling that it allows.
const PgBoss = require('pg-boss')
const bodies = require('./bodies')
const { main, number, workers } = require('./producer')

const connectionString = process.env.BENCH_DATABASE_URL
let boss

async function start() {
  boss = new PgBoss({ connectionString, max: 10 })
  boss.on('error', (error) => console.error(error))
  await boss.start()
}

// So many jobs of a batch at once; pg-boss itself hands over the whole batch.
async function runBatch(jobs) {
  let next = 0
  const lane = async () => {
    while (next < jobs.length) await bodies.run(jobs[next++].data)
  }
  await Promise.all(Array.from({ length: Math.min(jobs.length, number('BENCH_AT_ONCE', jobs.length)) }, lane))
}

main({
  store: 'postgres',
  left: ["SELECT count(*) FROM pgboss.job WHERE name = 'work' AND state IN ('created', 'active', 'retry')"],
  workers: {
    fast: workers(__filename, 2, { BENCH_BATCH: '5000', BENCH_FETCHERS: '2', BENCH_POLL: '0.5' }),
    sleep: workers(__filename, 2, { BENCH_BATCH: '250', BENCH_POLL: '0.5' }),
    narrow: workers(__filename, 1, { BENCH_BATCH: '200', BENCH_AT_ONCE: '4', BENCH_POLL: '0.5' }),
    default: workers(__filename, 1),
  },
  packages: ['pg-boss', 'pg'],
  config:
    '2 processes of 2 fetchers, batchSize 5,000, polling every 0.5 s (its minimum); insert of 1,000; ' +
    'sleepers: 2 batches of 250',
  setup: async () => {
    await start()
    await boss.createQueue('work')
    await boss.stop({ graceful: false })
  },
  open: start,
  enqueue: (job) => boss.send('work', job),
  enqueueMany: (jobs) => boss.insert(jobs.map((data) => ({ name: 'work', data }))),
  work: async () => {
    await start()
    const options = { batchSize: number('BENCH_BATCH', 1), pollingIntervalSeconds: number('BENCH_POLL', 2) }
    for (let n = 0; n < number('BENCH_FETCHERS', 1); n++) await boss.work('work', options, runBatch)
  },
})
