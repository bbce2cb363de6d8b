// An MCP client of the official SDKs: v1 (protocol versions with a session) and v2 (2026-07-28).
// The task is JSON in TASK: how to reach the server, what a person answers, and the steps. Prints
// one JSON line with the outcome of each.
import { readFileSync } from 'node:fs'

const task = JSON.parse(process.env.TASK)
const v2 = task.sdk === 'v2'
const { Client } = await import(v2 ? '@modelcontextprotocol/client' : '@modelcontextprotocol/sdk/client/index.js')
const { StdioClientTransport } = await import(
  v2 ? '@modelcontextprotocol/client/stdio' : '@modelcontextprotocol/sdk/client/stdio.js')
const { StreamableHTTPClientTransport } = await import(
  v2 ? '@modelcontextprotocol/client' : '@modelcontextprotocol/sdk/client/streamableHttp.js')

const questions = []

function transport() {
  if (task.command) {
    const [command, ...args] = task.command
    return new StdioClientTransport({ command, args, stderr: 'pipe' })
  }
  const requestInit = { headers: { Authorization: `Bearer ${task.bearer}`, ...task.headers } }
  return new StreamableHTTPClientTransport(new URL(task.url), { requestInit })
}

async function connected() {
  const capabilities = task.answer === undefined ? {} : { elicitation: { form: {} } }
  const options = { capabilities }
  if (v2) options.versionNegotiation = { mode: task.mode ?? { pin: '2026-07-28' } }
  const client = new Client({ name: 'a-test', version: '1.0.0' }, options)
  if (task.answer !== undefined) {
    const answer = async (request) => {
      questions.push(request.params.message)
      return task.answer
    }
    if (v2) client.setRequestHandler('elicitation/create', answer)
    else {
      const { ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js')
      client.setRequestHandler(ElicitRequestSchema, answer)
    }
  }
  const way = transport()
  await client.connect(way)
  // After this the SDK checks results by the schemas of their tools.
  const { tools } = await client.listTools()
  client.results = new Map(tools.map((tool) => [tool.name, tool.outputSchema.properties]))
  return client
}

// The result of a tool, all of whose members are in its schema.
async function called(client, step, outcomes) {
  const result = await client.callTool({ name: step.do, arguments: filled(step.with ?? {}, outcomes) })
  const known = client.results.get(step.do)
  const strange = Object.keys(result.structuredContent ?? {}).filter((name) => !(name in known))
  if (strange.length > 0) throw new Error(`not in the schema of ${step.do}: ${strange}`)
  return result
}

// Where a step's argument is {"from": N, "at": [names]}, it is taken from the outcome of step N.
function filled(value, outcomes) {
  if (Array.isArray(value)) return value.map((one) => filled(one, outcomes))
  if (value === null || typeof value !== 'object') return value
  if (value.from !== undefined) return value.at.reduce((at, name) => at[name], outcomes[value.from])
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, filled(one, outcomes)]))
}

async function outcome(client, step, outcomes) {
  switch (step.do) {
    case 'tools': return await client.listTools()
    case 'resources': return await client.listResources()
    case 'read': return await client.readResource({ uri: step.uri })
    case 'prompts': return await client.listPrompts()
    case 'prompt': return await client.getPrompt({ name: step.name, arguments: step.arguments ?? {} })
    case 'about': return {
      server: client.getServerVersion(),
      instructions: client.getInstructions(),
      version: v2 ? client.getNegotiatedProtocolVersion?.() : undefined,
    }
    case 'file': return { text: readFileSync(filled(step.path, outcomes), 'utf8') }
    default: return await called(client, step, outcomes)
  }
}

async function hammer() {
  // Many clients that list without pause, for a time.
  const clients = await Promise.all(Array.from({ length: task.clients }, connected))
  const until = performance.now() + task.milliseconds
  const counts = await Promise.all(clients.map(async (client) => {
    let [calls, errors] = [0, 0]
    while (performance.now() < until) {
      const result = await client.callTool({ name: 'list_webhooks', arguments: {} })
      calls += 1
      if (result.isError) errors += 1
    }
    await client.close()
    return { calls, errors }
  }))
  const sum = (name) => counts.reduce((sum, one) => sum + one[name], 0)
  return { calls: sum('calls'), errors: sum('errors') }
}

if (task.clients) {
  console.log(JSON.stringify(await hammer()))
} else {
  const outcomes = []
  let client
  try {
    client = await connected()
    for (const step of task.steps) {
      try {
        outcomes.push(await outcome(client, step, outcomes))
      } catch (error) {
        outcomes.push({ thrown: String(error.message), code: error.code })
      }
    }
  } catch (error) {
    outcomes.push({ failed: String(error.message), code: error.code })
  }
  console.log(JSON.stringify({ outcomes, questions }))
  await client?.close()
}
