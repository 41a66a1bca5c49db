// Walk of docs/manual/discord.md against discord-digital-twin: walk.mjs GATEWAY STATE_DIR
// Spawn by slash command, a turn, a project's thread, a killed gateway, a message while it
// was away. Ends with 0 if everything appeared once.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import { spawn } from 'node:child_process'
import { DigitalDiscord } from 'discord-digital-twin'

const [gateway, dir] = process.argv.slice(2)
const twin = new DigitalDiscord({
  guild: { name: 'guild' },
  channels: [{ name: 'general', type: 0 }, { name: 'project', type: 0 }],
  users: [{ username: 'ann' }],
})
await twin.start()
const ann = await twin.getFirstNonBotUserId()
const channels = await twin.prisma.channel.findMany()
const [general, project] = ['general', 'project'].map((name) => channels.find((it) => it.name === name).id)

const token = `${dir}/token`
fs.writeFileSync(token, twin.botToken, { mode: 0o600 })
fs.writeFileSync(`${dir}/gateway.toml`, `
[permission]
mode = "ask"
[channels.discord.thread_bindings]
spawn_acp_sessions = true
[[channels.discord.projects]]
channel = "${project}"
agent = "demo"
cwd = "${dir}"
[channels.discord.accounts.main]
token_file = "${token}"
base_url = "http://127.0.0.1:${twin.port}"
allowed_users = ["${ann}"]
`, { mode: 0o600 })

let log = ''
const start = () => {
  const child = spawn(gateway, ['up', '--state-dir', dir, '--json'], { stdio: ['ignore', 'pipe', 'pipe'] })
  child.stdout.on('data', (text) => (log += text))
  child.stderr.on('data', (text) => (log += text))
  return child
}
const ended = (child) => new Promise((done) => (child.exitCode ?? child.signalCode) === null ? child.once('exit', done) : done())
const until = async (what, find) => {
  for (let n = 0; n < 300; n++) {
    const found = await find()
    if (found) return found
    await new Promise((done) => setTimeout(done, 100))
  }
  throw new Error(`${what}: not seen within 30 s`)
}
const messages = (channelId) => twin.prisma.message.findMany({ where: { channelId } })
const threads = (parentId) => twin.prisma.channel.findMany({ where: { parentId } })
const say = (channelId, content) => twin.simulateUserMessage({ channelId, userId: ann, content })
const answered = (channelId, text) => until(`answer ${text}`, async () => {
  const found = (await messages(channelId)).filter((it) => it.authorId !== ann && it.content.startsWith(text))
  assert(found.length < 2, `${text} appears ${found.length} times`)
  return found[0]
})

let child = start()
try {
  const commands = await until('commands registered', async () => {
    const found = await twin.prisma.applicationCommand.findMany()
    return found.some((it) => it.name === 'acp') && found
  })
  assert(commands.some((it) => it.name === 'focus'))
  const agent = { type: 3, name: 'agent', value: 'demo' }
  await twin.simulateSlashCommand({
    channelId: general, userId: ann, name: 'acp', options: [{ type: 1, name: 'spawn', options: [agent] }],
  })
  const [thread] = await until('thread', async () => (await threads(general)).length === 1 && threads(general))
  await say(thread.id, 'say first')
  await answered(thread.id, 'say first')
  await say(project, 'say in a project')
  const [own] = await until('project thread', async () => (await threads(project)).length === 1 && threads(project))
  assert.equal(own.name, 'say in a project')
  await answered(own.id, 'say in a project')
  child.kill('SIGKILL')
  await ended(child)
  await say(thread.id, 'say while away')
  await say(project, 'say another')
  child = start()
  await answered(thread.id, 'say while away')
  const both = await until('second project thread', async () => (await threads(project)).length === 2 && threads(project))
  await answered(both.find((it) => it.id !== own.id).id, 'say another')
  for (const [at, count] of [[general, 1], [project, 2]]) assert.equal((await threads(at)).length, count)
  console.log('discord-digital-twin: the walk is complete')
} catch (error) {
  console.error(log)
  throw error
} finally {
  child.kill('SIGINT')
  await ended(child)
  await twin.stop()
}
process.exit(0)
