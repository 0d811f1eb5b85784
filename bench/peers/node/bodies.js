// What a job does and how it is seen: bench/bodies.py for Node.
const fs = require('fs')
const path = require('path')

const KINDS = {
  noop: { seconds: 0, stamped: false },
  stamp: { seconds: 0, stamped: true },
  sleep: { seconds: 0.1, stamped: false },
  turn: { seconds: 0.01, stamped: true },
  long: { seconds: 5, stamped: true },
}
const START_SIZE = 16
const DOT = Buffer.from('.')
const files = {}

const at = (name) => path.join(process.env.BENCH_FOLDER, name)
const append = (name, bytes) => fs.writeSync((files[name] ??= fs.openSync(at(name), 'a')), bytes)
const now = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6))
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))

async function run({ kind, number }) {
  const what = KINDS[kind]
  if (what.stamped) {
    const start = Buffer.alloc(START_SIZE)
    start.writeBigInt64LE(BigInt(number), 0)
    start.writeBigInt64LE(now(), 8)
    append('starts', start)
  }
  if (what.seconds) await pause(what.seconds)
  append('done', DOT)
}

function started() {
  try {
    return Math.floor(fs.statSync(at('starts')).size / START_SIZE)
  } catch {
    return 0
  }
}

function starts() {
  const bytes = fs.readFileSync(at('starts'))
  const found = []
  for (let o = 0; o + START_SIZE <= bytes.length; o += START_SIZE) {
    found.push({ number: Number(bytes.readBigInt64LE(o)), at: bytes.readBigInt64LE(o + 8) })
  }
  return found
}

module.exports = { run, started, starts, now, pause }
