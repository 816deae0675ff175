// Drives the dashboard in Chromium. The server is started by `tests/suite/dashboard.rs`, which also sets the variables.
// With SCREENSHOTS, it saves a picture of each view there, light and dark.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

const { PACKAGES, BROWSER, SERVER, OPEN_SERVER, OWN_SERVER, KEY, SCREENSHOTS } = process.env
const packages = createRequire(join(PACKAGES, '_'))
const { chromium } = packages('playwright-core')
const axe = await readFile(packages.resolve('axe-core/axe.min.js'), 'utf8')

const WIDE = { width: 1200, height: 800 }
const NARROW = { width: 400, height: 800 }
const HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
/** A hostile drawing and a picture, as libraries for figures give them. */
const FIGURES = `
import struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
rows = b''.join(b'\\0' + bytes([11, 110, 143]) * 150 for _ in range(50))
png = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 150, 50, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
svg = '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="60" onload="parent.hacked=1"><script>parent.hacked=1</script><circle cx="150" cy="30" r="25" fill="teal"/></svg>'
class Drawing:
    def _repr_svg_(self): return svg
class Picture:
    def _repr_png_(self): return png
display(Drawing())
Picture()`

const browser = await chromium.launch({
  executablePath: BROWSER,
  // The pages are this repository's own, and the namespaces of the browser's sandbox may not be there.
  args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-background-networking'],
})

const violations = []

setTimeout(() => {
  console.log('FAILED: the time is over')
  process.exit(1)
}, 240_000).unref()

async function open(url) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: WIDE, acceptDownloads: true })
  context.setDefaultTimeout(15_000)
  await context.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => console.error(`Content Security Policy: ${event.violatedDirective} ${event.blockedURI}`))
  })
  const page = await context.newPage()
  page.on('pageerror', (error) => violations.push(`error: ${error.stack ?? error}`))
  page.on('console', (message) => {
    if (/Content.Security|TrustedHTML|Refused to/i.test(message.text())) violations.push(message.text())
  })
  page.on('request', (request) => {
    const target = new URL(request.url())
    if (target.protocol !== 'data:' && target.protocol !== 'blob:' && target.host !== new URL(url).host) violations.push(`request to ${target}`)
  })
  await page.goto(url)
  return page
}

/** Checks accessibility in light and dark, and that a small screen needs no sideways scrolling. */
async function inspect(page, name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme })
    if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, `${name}-${colorScheme}.png`), fullPage: true })
    // `evaluate` is not subject to the page's policy.
    await page.evaluate(axe)
    const { violations: found } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }))
    const serious = found.filter(({ impact }) => impact === 'serious' || impact === 'critical')
    const shown = serious.map(({ id, nodes }) => `${id}: ${nodes.map(({ html, any }) => `${html} ${any[0]?.message ?? ''}`).join(' | ')}`)
    assert.deepEqual(shown, [], `${name}, ${colorScheme}`)
  }
  await page.setViewportSize(NARROW)
  const width = await page.evaluate(() => document.documentElement.scrollWidth)
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, `${name}-narrow.png`), fullPage: true })
  assert.ok(width <= NARROW.width, `${name} is ${width} pixels wide on a screen of ${NARROW.width}`)
  await page.setViewportSize(WIDE)
  await page.emulateMedia({ colorScheme: 'light' })
  assert.equal(await page.evaluate(() => window.hacked), undefined, name)
}

async function step(name, work) {
  const start = Date.now()
  try {
    await work()
  } catch (error) {
    console.log(`FAILED ${name}`)
    if (SCREENSHOTS) await page?.screenshot({ path: join(SCREENSHOTS, 'failed.png') }).catch(() => {})
    throw error
  }
  console.log(`ok ${name} (${Date.now() - start} ms)`)
}

/** Returns true if a graph has its line, in the colour of the style sheet. */
const hasLine = (graph, color) => graph.locator('canvas').evaluate((canvas, color) => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(`--graph-${color}`).trim()
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
  for (let i = 0; i < data.length; i += 4) {
    if (data[i] === red && data[i + 1] === green && data[i + 2] === blue && data[i + 3] === 255) return true
  }
  return false
}, color)

const byRole = (role, name) => page.getByRole(role, { name, exact: true })
const tab = (name) => page.getByRole('navigation', { name: 'Sandbox' }).getByRole('link', { name }).click()
const main = (name) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name }).click()
let page

try {
  page = await open(SERVER)

  await step('a wrong key is refused, a right one is kept in this tab only', async () => {
    await byRole('textbox', 'API key').or(page.getByLabel('API key')).fill('cfd_0_0')
    await byRole('button', 'Log in').click()
    await page.getByRole('alert').waitFor()
    await inspect(page, 'login')
    await page.getByLabel('API key').fill(KEY)
    await byRole('button', 'Log in').click()
    await byRole('heading', 'Sandboxes').waitFor()
    await page.getByText('There are no sandboxes here.').waitFor()
    const [local, cookies] = await page.evaluate(() => [localStorage.length, document.cookie])
    assert.deepEqual([local, cookies], [0, ''])
  })

  await step('a sandbox is created with the keyboard alone', async () => {
    await page.evaluate(() => document.activeElement?.blur())
    const focused = () =>
      page.evaluate(() => {
        const element = document.activeElement
        const style = getComputedStyle(element)
        return { text: element.textContent || element.getAttribute('placeholder') || element.name, outline: style.outlineStyle, tag: element.tagName }
      })
    const seen = []
    for (let i = 0; i < 30; i++) {
      await page.keyboard.press('Tab')
      const at = await focused()
      if (at.tag === 'BODY') continue
      assert.notEqual(at.outline, 'none', `the focus is visible on ${at.text}`)
      seen.push(at.text)
      if (at.text === 'New sandbox') break
    }
    assert.equal(seen[0], 'Skip to content')
    for (const text of ['Sandboxes', 'Snapshots', 'Usage', 'Server', 'Log out', 'New sandbox']) assert.ok(seen.includes(text), `${text}: ${seen}`)
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').waitFor()
    assert.equal((await focused()).tag, 'INPUT')
    await page.keyboard.type('demo')
    await page.keyboard.press('Tab')
    await page.keyboard.type('process')
    await page.keyboard.press('Tab')
    await page.keyboard.type(`team=blue,note=${HOSTILE.slice(0, 20)}`)
    await inspect(page, 'create')
    await page.keyboard.press('Enter')
    await byRole('heading', 'demo').waitFor()
  })

  await step('the posture is shown', async () => {
    await page.getByRole('region', { name: 'Posture' }).getByText('enforced').first().waitFor()
    await inspect(page, 'overview')
  })

  await step('a command runs, and hostile output is text', async () => {
    await tab('Commands')
    const line = `printf '%s\\n' '${HOSTILE}'; printf '\\033]0;title\\007\\033[31mred\\033[0m\\n' >&2; sleep 1; printf 'caf\\303\\251 \\342\\200\\256 end\\n'; exit 3`
    await page.getByLabel('Command', { exact: true }).fill(line)
    await byRole('button', 'Run').click()
    const log = page.getByRole('log', { name: 'Output' })
    await log.getByText('onerror').waitFor()
    assert.ok(!(await log.textContent()).includes('café'), 'output arrives before the end')
    await log.getByText('café ⟨U+202E⟩ end').waitFor()
    const text = await log.textContent()
    assert.ok(text.includes(HOSTILE) && text.includes('^[]0;title^Gred\n'), text)
    assert.equal(await page.locator('main img, main script').count(), 0)
    await page.getByRole('region', { name: 'Commands' }).getByText('exit code 3').waitFor()
    await inspect(page, 'commands')
  })

  await step('a command is killed', async () => {
    await page.getByLabel('Command', { exact: true }).fill('sleep 1000')
    await byRole('button', 'Run').click()
    await page.getByRole('button', { name: 'Kill sleep 1000' }).click()
    await page.getByRole('row', { name: /sleep 1000/ }).getByText(/signal 9|cancelled/).waitFor()
  })

  await step('a terminal works, and continues after a cut connection', async () => {
    const sockets = []
    await page.routeWebSocket(/\/attach/, (socket) => {
      socket.connectToServer()
      sockets.push(socket)
    })
    await tab('Terminal')
    await byRole('button', 'Open terminal').click()
    await page.getByText('Connected.').waitFor()
    const screen = page.locator('.xterm-rows')
    await page.keyboard.type('echo $((40+2))-$(tput colors 2>/dev/null; test -t 0 && echo tty)\n')
    await screen.getByText('42-').waitFor()
    await page.keyboard.type(`printf '\\033]0;evil\\007\\033[38;2;200;80;10mcolour\\033[0m <b>bold</b>\\n'\n`)
    await screen.getByText('<b>bold</b>').last().waitFor()
    assert.match(await page.title(), /^Sandbox/)
    const coloured = await screen.locator('span', { hasText: 'colour' }).last().evaluate((span) => getComputedStyle(span).color)
    const before = await screen.textContent()
    await sockets[0].close({ code: 1012 })
    await page.getByText('The connection is lost.').waitFor()
    await page.getByText('Connected.').waitFor()
    await page.keyboard.type('echo $((6*7))after\n')
    await screen.getByText('42after').waitFor()
    const after = await screen.textContent()
    assert.ok(after.startsWith(before.trimEnd()), `lost: ${after}`)
    assert.deepEqual([sockets.length, after.split('42-').length], [2, 2], `repeated: ${after}`)
    assert.notEqual(coloured, await screen.evaluate((rows) => getComputedStyle(rows).color), 'colours are shown')
    await inspect(page, 'terminal')
    await page.keyboard.press('Control+]')
    assert.equal(await page.evaluate(() => document.activeElement.id), 'leave-terminal')
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: 'Attach to sh' }).click()
    await screen.getByText('42-').waitFor()
    await page.locator('.xterm-helper-textarea').focus()
    await page.keyboard.type('exit 7\n')
    await page.getByText('The command has ended: exit code 7.').waitFor()
    await byRole('button', 'Leave').click()
  })

  await step('code runs with output as it arrives, and figures', async () => {
    await tab('Code')
    const code = page.getByLabel('Code', { exact: false }).and(page.locator('textarea'))
    await code.fill(`print('<i>first</i>', flush=True)\nimport time; time.sleep(2)\nprint('second')\n'${HOSTILE.replaceAll("'", '')}'`)
    await byRole('button', 'Run').click()
    const log = page.getByRole('log', { name: 'Output of the code' })
    await log.getByText('<i>first</i>').waitFor()
    assert.ok(!(await log.textContent()).includes('second'), 'output arrives before the end')
    await log.getByText('second').waitFor()
    await page.getByText('exit code 0').waitFor()
    await page.getByRole('region', { name: 'Result value' }).getByText('onerror').waitFor()
    await page.getByLabel('Keep variables').check()
    for (const [text, value] of [['x = 41', null], ['x + 1', '42']]) {
      await code.fill(text)
      await code.press('Control+Enter')
      if (value) await page.getByRole('region', { name: 'Result value' }).getByText(value).waitFor()
      else await page.getByText('exit code 0').waitFor()
      await byRole('button', 'Run').waitFor()
    }
    await code.fill(FIGURES)
    await byRole('button', 'Run').click()
    await page.getByText('exit code 0').waitFor()
    const figures = page.locator('.result img')
    await figures.nth(1).waitFor()
    const sizes = await figures.evaluateAll((images) => Promise.all(images.map(async (image) => (await image.decode(), image.naturalWidth))))
    assert.deepEqual(sizes, [300, 150])
    await inspect(page, 'code')
    await code.fill('import time; time.sleep(1000)')
    await byRole('button', 'Run').click()
    await byRole('button', 'Stop').click()
    await page.getByText('The code was stopped.').waitFor()
    // The kernel of code that was stopped is closed, and so is one whose view is left.
    const kernels = () => page.evaluate(async (key) => {
      const headers = { Authorization: `Bearer ${key}` }
      const { sandboxes } = await (await fetch('/v1/sandboxes', { headers })).json()
      return (await (await fetch(`/v1/sandboxes/${sandboxes[0].id}/kernels`, { headers })).json()).kernels.length
    }, KEY)
    const become = async (count) => {
      for (let i = 0; i < 50 && (await kernels()) !== count; i++) await page.waitForTimeout(100)
      assert.equal(await kernels(), count)
    }
    await become(0)
    await code.fill('x = 1')
    await byRole('button', 'Run').click()
    await page.getByText('exit code 0').waitFor()
    await become(1)
    // A refusal keeps the kernel.
    const busy = { status: 409, contentType: 'application/problem+json', body: JSON.stringify({ title: 'Busy', status: 409, detail: 'test', kind: 'conflict' }) }
    await page.route('**/kernels/*/code', (route) => route.fulfill(busy), { times: 1 })
    await byRole('button', 'Run').click()
    await page.getByText('Busy: test').waitFor()
    await code.fill('x + 1')
    await byRole('button', 'Run').click()
    await page.getByRole('region', { name: 'Result value' }).getByText('2').waitFor()
    await tab('Files')
    await become(0)
  })

  await step('files are uploaded, viewed, downloaded and deleted', async () => {
    await tab('Files')
    const contents = `${HOSTILE}\nline two\n`
    const name = 'a<b>&"\u202e.html'
    await page.locator('input[type=file]').setInputFiles([
      { name, mimeType: 'text/html', buffer: Buffer.from(contents) },
      { name: 'empty', mimeType: 'text/plain', buffer: Buffer.alloc(0) },
    ])
    const row = page.getByRole('row', { name: /a<b>&"⟨U\+202E⟩\.html/ })
    await row.getByRole('button', { name: /^View/ }).click()
    await page.getByRole('region', { name: 'Contents' }).getByText('line two').waitFor()
    assert.ok((await page.getByRole('region', { name: 'Contents' }).textContent()).includes(HOSTILE))
    assert.equal(await page.locator('main img, main script').count(), 0)
    const waiting = page.waitForEvent('download')
    await row.getByRole('button', { name: /^Download/ }).click()
    assert.equal(await readFile(await (await waiting).path(), 'utf8'), contents)
    await inspect(page, 'files')
    // An open list does not keep the sandbox from its idle timeout.
    let lists = 0
    await page.route('**/files/list?**', (route) => ((lists += 1), route.continue()))
    await page.waitForTimeout(6000)
    assert.equal(lists, 0)
    await byRole('button', 'Reload').click()
    await row.waitFor()
    for (let i = 0; i < 50 && lists === 0; i++) await page.waitForTimeout(100)
    assert.equal(lists, 1)
    await page.getByRole('button', { name: 'View empty' }).click()
    await byRole('heading', 'empty').waitFor()
    await page.getByRole('button', { name: 'Delete empty' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('row', { name: /^empty/ }).waitFor({ state: 'detached' })
  })

  await step('graphs are drawn', async () => {
    await tab('Graphs')
    const memory = page.getByRole('img', { name: /^(Memory|Processes|Storage) over time, now [0-9]/ })
    await memory.first().waitFor()
    await page.waitForTimeout(2500)
    assert.ok(await hasLine(page.getByRole('img', { name: /^Storage over time/ }), 3))
    await page.getByText('The sandbox has no network.').waitFor()
    assert.equal(await page.getByRole('img', { name: /^Network/ }).count(), 0)
    await inspect(page, 'graphs')
  })

  await step('a sandbox is renamed, extended and deleted', async () => {
    await page.getByRole('button', { name: 'Rename demo' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill('other')
    await page.getByRole('dialog').getByRole('button', { name: 'Rename' }).click()
    await byRole('heading', 'other').waitFor()
    await page.getByRole('button', { name: 'Extend other' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Extend' }).click()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    await main('Sandboxes')
    await page.getByRole('row', { name: /other/ }).getByText('team=blue').waitFor()
    await inspect(page, 'sandboxes')
    await page.getByRole('button', { name: 'Delete other' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByText('There are no sandboxes here.').waitFor()
  })

  await step('a sandbox is paused, resumed, forked, and restored from a snapshot', async () => {
    await byRole('button', 'New sandbox').click()
    await page.getByRole('dialog').getByLabel('Name').fill('base')
    await page.getByRole('dialog').getByLabel('Backend').selectOption('simulated')
    await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
    await byRole('heading', 'base').waitFor()
    await page.getByRole('button', { name: 'Pause base' }).click()
    await page.getByText('paused', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Resume base' }).click()
    await page.getByText('running', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Fork base' }).click()
    await page.getByRole('dialog').getByLabel('Name of the copy').fill('copy')
    await page.getByRole('dialog').getByRole('button', { name: 'Fork' }).click()
    await byRole('heading', 'copy').waitFor()
    await page.getByRole('button', { name: 'Take a snapshot of copy' }).click()
    await page.getByRole('dialog').getByLabel('Name of the snapshot').fill('saved')
    await page.getByRole('dialog').getByRole('button', { name: 'Take snapshot' }).click()
    await byRole('heading', 'Snapshots').waitFor()
    await page.getByRole('row', { name: /saved/ }).waitFor()
    await inspect(page, 'snapshots')
    await page.getByRole('button', { name: 'Create sandbox from saved' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill('again')
    await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
    await byRole('heading', 'again').waitFor()
    await main('Snapshots')
    const tree = page.getByRole('list', { name: 'Tree of snapshots and sandboxes' })
    await tree.getByRole('link', { name: 'again' }).waitFor()
    const depth = (name) => tree.getByText(name, { exact: true }).first().evaluate((node) => {
      let depth = 0
      for (let at = node; !at.classList.contains('tree'); at = at.parentElement) depth += at.tagName === 'LI'
      return depth
    })
    assert.deepEqual([await depth('base'), await depth('copy'), await depth('again')], [1, 2, 4])
    await inspect(page, 'tree')
    await page.getByRole('button', { name: 'Delete saved' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByText('There are no snapshots.').waitFor()
  })

  await step('the network of a sandbox is shown: its policy, its graphs and what was refused', async () => {
    const network = { kind: 'allow', hosts: ['allowed.example:443', '*.other.example:443'] }
    const statuses = await page.evaluate(async ([key, network]) => {
      const send = async (method, path, body) => {
        const headers = { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' }
        return (await fetch(path, { method, headers, body: JSON.stringify(body) })).status
      }
      const made = await send('POST', '/v1/sandboxes', { name: 'net', backend: 'networked', network })
      const set = await send('PUT', '/v1/sandboxes/net/network', network)
      // The backend of this test uses the network whenever something starts.
      await send('POST', '/v1/sandboxes/net/execs', { shell: 'true' })
      return [made, set]
    }, [KEY, network])
    assert.deepEqual(statuses, [201, 200])
    await main('Sandboxes')
    await page.getByRole('link', { name: 'net', exact: true }).click()
    await page.getByText('allows allowed.example:443, *.other.example:443').waitFor()
    await tab('Network')
    await page.getByRole('list', { name: 'Allowed hosts' }).getByText('*.other.example:443').waitFor()
    await page.getByText('1000 B').first().waitFor()
    const connections = page.getByRole('region', { name: 'Connections' })
    const row = connections.getByRole('row', { name: /denied\.example:443/ })
    await row.getByText('refused', { exact: true }).waitFor()
    await row.getByText('no rule').waitFor()
    await connections.getByText('allowed.example:443').waitFor()
    await inspect(page, 'network')
    await page.getByLabel('Refused only').check()
    await connections.getByText('allowed.example:443').waitFor({ state: 'detached' })
    await row.waitFor()
    // Its counters stand still, so the test moves them: 10 KiB sent and 100 KiB received in each answer.
    let answers = 0
    await page.route('**/stats', async (route) => {
      const response = await route.fetch()
      const body = await response.json()
      answers += 1
      body.network.sent_bytes += answers * 10240
      body.network.received_bytes += answers * 102400
      await route.fulfill({ response, json: body })
    })
    await tab('Graphs')
    const [sent, received] = ['sent', 'received'].map((way) => page.getByRole('img', { name: new RegExp(`^Network ${way} over time, now [0-9.]+ KiB/s`) }))
    await sent.waitFor()
    await received.waitFor()
    await page.waitForTimeout(2500)
    assert.deepEqual([await hasLine(sent, 0), await hasLine(received, 1)], [true, true])
    const rate = async (graph) => Number(/now ([0-9.]+) KiB/.exec(await graph.getAttribute('aria-label'))[1])
    assert.ok((await rate(received)) > 2 * (await rate(sent)))
    await inspect(page, 'network-graphs')
    await page.unroute('**/stats')
    await page.getByRole('button', { name: 'Delete net' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await byRole('heading', 'Sandboxes').waitFor()
  })

  await step('usage and the server are shown', async () => {
    await main('Usage')
    await page.getByText('Sandboxes now').waitFor()
    await page.getByRole('region', { name: 'Usage by day' }).waitFor()
    await inspect(page, 'usage')
    await page.getByLabel('Tenants').selectOption('all')
    await page.getByRole('button', { name: 'Quota of acme' }).first().click()
    await byRole('heading', 'Quota of acme').waitFor()
    await page.getByText(/^\d+ of 20$/).first().waitFor()
    await page.getByRole('button', { name: 'Show this tenant' }).click()
    await byRole('heading', 'Quota').waitFor()
    await main('Server')
    await page.getByText('ready', { exact: true }).waitFor()
    await page.getByText('Waiting for room').waitFor()
    // Endpoints have braces, in the values of labels.
    const requests = await page.evaluate(async (key) => {
      const text = await (await fetch('/v1/metrics', { headers: { Authorization: `Bearer ${key}` } })).text()
      const lines = text.split('\n').filter((line) => line.startsWith('cofferdam_requests_total'))
      return lines.reduce((all, line) => all + Number(line.split(' ').at(-1)), 0)
    }, KEY)
    await byRole('button', 'Log out').waitFor()
    await main('Usage')
    await main('Server')
    const shown = page.locator('dt', { hasText: /^Requests$/ }).locator('xpath=following-sibling::dd[1]')
    await shown.waitFor()
    assert.ok(Number(await shown.textContent()) >= requests, `${await shown.textContent()} of ${requests}`)
    await page.getByRole('heading', { name: 'Pools' }).waitFor()
    await inspect(page, 'server')
  })

  await step('the audit log is searched', async () => {
    await main('Audit')
    const lines = page.getByRole('region', { name: 'Lines of the audit log' })
    // The pages' own requests are the newest lines.
    const text = page.getByLabel('Text', { exact: true })
    await text.fill('post')
    await page.keyboard.press('Enter')
    await lines.getByRole('row', { name: /^[^:]+:[^:]+:.*201 POST \/v1\/sandboxes\b/ }).first().waitFor()
    await inspect(page, 'audit')
    await text.fill('DENIED.example')
    await page.keyboard.press('Enter')
    await lines.getByText('denied.example:443: no rule').waitFor()
    await lines.getByText(/POST \/v1/).first().waitFor({ state: 'detached' })
    // The time of an input is that of this computer's zone.
    const local = (at) => new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16)
    await byRole('button', 'Clear').click()
    await lines.getByText(/GET \/v1\/audit/).first().waitFor()
    await page.getByLabel('From').fill(local(Date.now() + 3_600_000))
    await byRole('button', 'Search').click()
    await page.getByText('No line was found.').waitFor()
    await page.getByLabel('From').fill(local(Date.now() - 3_600_000))
    await page.getByLabel('Until').fill(local(Date.now() + 3_600_000))
    await byRole('button', 'Search').click()
    await lines.getByText(/GET \/v1\/audit/).first().waitFor()
    await page.getByLabel('Kind').selectOption('end')
    await page.getByLabel('Kind').press('Tab')
    await byRole('button', 'Search').click()
    await lines.getByText('exit 0').first().waitFor()
    await lines.getByText(/GET \/v1\/audit/).first().waitFor({ state: 'detached' })
    await lines.getByText(/as JSON/).first().click()
    await lines.getByText('"duration_us"').first().waitFor()
    await page.getByLabel('Sandbox').fill('none')
    await page.keyboard.press('Enter')
    await page.getByText('No line was found.').waitFor()
    await page.getByLabel('Tenants').selectOption('all')
    await page.getByLabel('Tenant', { exact: true }).fill('nothing')
    await byRole('button', 'Search').click()
    await page.getByText('No line was found.').waitFor()
  })

  await step('a log out forgets the key', async () => {
    await byRole('button', 'Log out').click()
    await page.getByLabel('API key').waitFor()
    assert.equal(await page.evaluate(() => sessionStorage.length), 0)
  })

  await step('a server without keys needs none, and pages of other origins cannot use it', async () => {
    page = await open(OPEN_SERVER)
    await page.getByRole('link', { name: /^sb-/ }).click()
    await tab('Terminal')
    await byRole('button', 'Open terminal').click()
    await page.getByText('Connected.').waitFor()
    await page.keyboard.type('echo $((40+2))\n')
    await page.locator('.xterm-rows').getByText('42').waitFor()
    // A guest can serve files of this origin, below the path of a port.
    const before = violations.splice(0)
    await page.evaluate(async () => {
      // A policy of trusted types refuses a script's address, too.
      const style = document.createElement('link')
      style.rel = 'stylesheet'
      style.href = '/v1/sandboxes/x/ports/80/x.css'
      const answered = new Promise((resolve) => (style.onload = style.onerror = resolve))
      document.head.append(style)
      await answered
      await import('/v1/sandboxes/x/ports/80/x.js').catch(() => {})
    })
    const refused = violations.splice(0, violations.length, ...before).join('\n')
    assert.match(refused, /style-src.*x\.css/)
    assert.match(refused, /script-src.*x\.js/)
    // The same server under another name is another origin.
    const other = OPEN_SERVER.replace('127.0.0.1', 'localhost')
    const [sandbox] = (await (await fetch(`${OPEN_SERVER}/v1/sandboxes`)).json()).sandboxes
    const [exec] = (await (await fetch(`${OPEN_SERVER}/v1/sandboxes/${sandbox.id}/execs`)).json()).execs
    const path = `/v1/sandboxes/${sandbox.id}/execs/${exec.id}/attach`
    const foreign = await (await browser.newContext()).newPage()
    await foreign.route('**/evil', (route) => route.fulfill({ body: '<h1>evil</h1>', contentType: 'text/html' }))
    await foreign.goto(`${other}/evil`)
    const outcome = await foreign.evaluate(
      async ([target, attach]) => {
        const simple = await fetch(`${target}/v1/sandboxes`, { method: 'POST', mode: 'no-cors', body: '{"name":"evil"}' }).then(() => 'sent', String)
        const opened = await new Promise((resolve) => {
          const socket = new WebSocket(target.replace('http', 'ws') + attach)
          socket.onopen = () => resolve(true)
          socket.onerror = () => resolve(false)
        })
        return { simple, opened }
      },
      [OPEN_SERVER, path],
    )
    assert.equal(outcome.opened, false)
    const { sandboxes } = await (await fetch(`${OPEN_SERVER}/v1/sandboxes`)).json()
    assert.equal(sandboxes.length, 1, `${outcome.simple}: ${JSON.stringify(sandboxes)}`)
  })

  await step('the changes of a workspace are shown as text, and applied', async () => {
    page = await open(OWN_SERVER)
    await page.getByRole('link', { name: 'review' }).click()
    await tab('Changes')
    const diff = page.getByRole('region', { name: 'Differences of page.html' })
    await diff.locator('.removed', { hasText: '-old' }).waitFor()
    await diff.locator('.added', { hasText: '<img src=x onerror' }).waitFor()
    assert.equal(await page.evaluate(() => window.hacked), undefined)
    // Lines of a guest's file that look like headers are lines of that file.
    const notes = page.getByRole('region', { name: 'Differences of notes.txt' })
    await notes.locator('.removed', { hasText: '--- a/page.html' }).waitFor()
    await notes.locator('.added', { hasText: '+++ b/evil' }).waitFor()
    await page.locator('summary', { hasText: 'gone.txt' }).getByText('deleted').waitFor()
    await page.getByText('3 files changed').waitFor()
    assert.equal(await page.locator('details.diff').count(), 3)
    await inspect(page, 'changes')
    const ask = () => byRole('button', 'Apply').click()
    await ask()
    await page.getByRole('dialog').getByText('3 changes are written to').waitFor()
    await byRole('button', 'Cancel').click()
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    const stale = { status: 409, contentType: 'application/problem+json', body: JSON.stringify({ title: 'Changed', status: 409, detail: 'since the review', kind: 'conflict' }) }
    await page.route('**/changes/apply', (route) => route.fulfill(stale), { times: 1 })
    await ask()
    await byRole('button', 'Apply changes').click()
    await page.getByRole('dialog').getByText('Changed: since the review').waitFor()
    await byRole('button', 'Cancel').click()
    await notes.waitFor()
    await ask()
    await byRole('button', 'Apply changes').click()
    await page.getByText('3 changes were applied.').waitFor()
    await page.getByText('There are no changes.').waitFor()
    await inspect(page, 'applied')
  })

  assert.deepEqual(violations, [])
  console.log('ok the console has no error and no violation of the policy')
} finally {
  await browser.close()
}
