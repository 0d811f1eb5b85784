// The producer of a system on Node: the same commands, one JSON line each, as bench/producer.py.
const readline = require('readline')
const bodies = require('./bodies')

const BULK = 1000
const LOST_AFTER_MS = 20000
const seconds = (begun) => (performance.now() - begun) / 1000

function commands(system) {
  return {
    describe: async () => {
      const { store, left, workers, config, packages } = system
      const versions = Object.fromEntries(packages.map((name) => [name, version(name)]))
      return { store, left, workers, beside: [], versions: { ...versions, node: process.versions.node }, config, bulk: true, callers: 'tasks' }
    },
    setup: async () => (await system.setup?.(), {}),
    open: async () => (await system.open(), {}),

    enqueue: async ({ seconds: box, callers, at_most: most = Infinity }) => {
      await system.enqueue({ kind: 'noop', number: 0 })
      const begun = performance.now()
      let count = 1
      const caller = async () => {
        while (seconds(begun) < box && count <= most) await system.enqueue({ kind: 'noop', number: count++ })
      }
      await Promise.all(Array.from({ length: callers }, caller))
      return { count, seconds: seconds(begun) }
    },

    fill: async ({ count, seconds: box, kind = 'noop' }) => {
      const begun = performance.now()
      let filled = 0
      while (filled < count && seconds(begun) < box) {
        const size = Math.min(BULK, count - filled)
        await system.enqueueMany(Array.from({ length: size }, (_, n) => ({ kind, number: filled + n })))
        filled += size
      }
      return { count: filled, seconds: seconds(begun) }
    },

    one: async ({ kind, number }) => {
      await system.enqueue({ kind, number })
      return { at: Number(bodies.now()) }
    },

    latency: async ({ count, seconds: box }) => {
      const asked = []
      const before = bodies.started()
      const begun = performance.now()
      while (asked.length < count && (seconds(begun) < box || asked.length < 5)) {
        await bodies.pause(0.005 + Math.random() * 0.025)
        asked.push(bodies.now())
        await system.enqueue({ kind: 'stamp', number: asked.length - 1 })
        await untilStarted(before + asked.length)
      }
      const ms = bodies.starts().slice(before).map(({ number, at }) => Number(at - asked[number]) / 1e6)
      return { ms }
    },
  }
}

async function untilStarted(count) {
  const lost = performance.now() + LOST_AFTER_MS
  while (bodies.started() < count) {
    if (performance.now() > lost) throw new Error('a job did not start')
    await new Promise((resolve) => setTimeout(resolve, 1))
  }
}

function version(name) {
  const fs = require('fs')
  const path = require('path')
  return JSON.parse(fs.readFileSync(path.join(__dirname, 'node_modules', name, 'package.json'))).version
}

// `node bullmq.js producer` reads commands; `node bullmq.js worker` runs jobs.
async function main(system) {
  if (process.argv[2] === 'worker') return system.work()
  const known = commands(system)
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: name, ...asked } = JSON.parse(line)
    let answer
    try {
      answer = await known[name](asked)
    } catch (error) {
      answer = { error: String(error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

const number = (name, otherwise) => Number(process.env[name] ?? otherwise)
const workers = (file, processes, env = {}) => ({ command: `${process.execPath} ${file} worker`, processes, env })

module.exports = { main, number, workers }
