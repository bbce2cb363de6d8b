// Runs the official conformance suite's scenarios for servers that any server can meet: the others
// want tools of a test server. Its calls get the bearer of BEARER on their way. Node 20 lacks one
// function that the suite imports for another purpose, so that it runs as a copy without it.
import { readFileSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { spawn } from 'node:child_process'

const [url, ...scenarios] = process.argv.slice(2)
const folder = new URL('node_modules/@modelcontextprotocol/conformance/dist/', import.meta.url)
const text = readFileSync(new URL('index.js', folder), 'utf8')
const imported = /,globSync as (\w+)/
const name = text.match(imported)[1]
const copy = new URL(`index.${process.pid}.mjs`, folder)
writeFileSync(copy, text.replace(imported, '').replace(/^(#!.*\n)?/, `const ${name}=()=>[];\n`))

const target = new URL(url)
const proxy = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${process.env.BEARER}` }
  const passed = http.request(
    { host: target.hostname, port: target.port, path: request.url, method: request.method, headers },
    (answer) => {
      response.writeHead(answer.statusCode, answer.headers)
      answer.pipe(response)
    },
  )
  passed.on('error', () => response.destroy())
  request.pipe(passed)
})
proxy.listen(0, '127.0.0.1', async () => {
  const own = `http://127.0.0.1:${proxy.address().port}/mcp`
  const results = {}
  for (const scenario of scenarios) {
    const run = spawn(process.execPath, [copy.pathname, 'server', '--url', own, '--scenario', scenario])
    let printed = ''
    run.stdout.on('data', (data) => (printed += data))
    run.stderr.on('data', (data) => (printed += data))
    const code = await new Promise((resolve) => run.on('close', resolve))
    results[scenario] = { code, printed: printed.slice(-2000) }
  }
  console.log(JSON.stringify(results))
  process.exit(0)
})
