// One sandbox.

import { ApiError, get, sandboxPath } from './api'
import { ChangesPanel } from './changes'
import { CodePanel } from './code'
import { ExecsPanel } from './execs'
import { FilesPanel } from './files'
import { bytes, duration, name, shortId, time, visible, words } from './format'
import { GraphsPanel } from './graphs'
import { NetworkPanel, policyText } from './network'
import { go, link } from './router'
import { Actions, can, Labels, State, useBackends } from './sandboxes'
import { TerminalPanel } from './terminal'
import type { SandboxDetails } from './types'
import { Badge, Failure, Loading, Table, usePolled } from './ui'

const REFRESH = 3000

const TABS: [string, string][] = [
  ['', 'Overview'],
  ['commands', 'Commands'],
  ['terminal', 'Terminal'],
  ['code', 'Code'],
  ['files', 'Files'],
  ['changes', 'Changes'],
  ['network', 'Network'],
  ['graphs', 'Graphs'],
]

export function SandboxPage({ id, tab, rest }: { id: string; tab: string; rest: string[] }) {
  const loaded = usePolled<SandboxDetails>((signal) => get(sandboxPath(id), signal), REFRESH, [id])
  const backends = useBackends()
  const sandbox = loaded.value
  const gone = loaded.error instanceof ApiError && [404, 410].includes(loaded.error.status)
  if (!sandbox || gone) {
    return (
      <>
        <p>
          <a href={link('sandboxes')}>All sandboxes</a>
        </p>
        {loaded.error ? <Failure error={loaded.error} /> : <Loading />}
      </>
    )
  }
  const leave = () => go('sandboxes')
  return (
    <>
      <div class="title">
        <h1>{sandbox.name ? name(sandbox.name) : shortId(sandbox.id)}</h1>
        <State sandbox={sandbox} />
      </div>
      <Actions sandbox={sandbox} backends={backends} changed={loaded.reload} deleted={leave} />
      <nav class="tabs" aria-label="Sandbox">
        {TABS.filter(([key]) => key !== 'changes' || sandbox.workspace).map(([key, title]) => (
          <a href={key ? link('sandboxes', id, key) : link('sandboxes', id)} aria-current={tab === key ? 'page' : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <Failure error={loaded.error} />
      {tab === '' && <Overview sandbox={sandbox} />}
      {tab === 'commands' && <ExecsPanel id={id} />}
      {tab === 'terminal' &&
        (backends.length === 0 || can(backends, sandbox, 'terminal') ? (
          <TerminalPanel id={id} />
        ) : (
          <p class="muted">The backend {sandbox.backend} has no terminals.</p>
        ))}
      {tab === 'code' && <CodePanel id={id} />}
      {tab === 'files' && <FilesPanel id={id} path={rest} />}
      {tab === 'changes' && sandbox.workspace && <ChangesPanel id={id} workspace={sandbox.workspace} />}
      {tab === 'network' && <NetworkPanel id={id} />}
      {tab === 'graphs' && <GraphsPanel id={id} />}
    </>
  )
}

const STATES: Record<string, 'good' | 'bad' | 'warn' | 'plain'> = {
  enforced: 'good',
  'weaker-than-asked': 'warn',
  absent: 'bad',
  'not-asked': 'plain',
}

function Overview({ sandbox }: { sandbox: SandboxDetails }) {
  return (
    <>
      <dl class="facts">
        <dt>Id</dt>
        <dd class="mono">{sandbox.id}</dd>
        <dt>Backend</dt>
        <dd>
          {sandbox.backend}, level {sandbox.level}
        </dd>
        <dt>Created</dt>
        <dd>{time(sandbox.created)}</dd>
        <dt>Ends</dt>
        <dd>
          {time(sandbox.ends)}, or {duration(sandbox.idle)} after its last use
        </dd>
        {Object.keys(sandbox.labels).length > 0 && (
          <>
            <dt>Labels</dt>
            <dd>
              <Labels labels={sandbox.labels} />
            </dd>
          </>
        )}
        {sandbox.workspace && (
          <>
            <dt>Workspace</dt>
            <dd>a copy of {name(sandbox.workspace)}</dd>
          </>
        )}
        <dt>Network</dt>
        <dd>{policyText(sandbox.network)}</dd>
        <dt>Limits</dt>
        <dd>
          {Object.entries(sandbox.limits)
            .filter(([, value]) => value !== null)
            .map(([key, value]) => `${words(key)} ${limit(key, value)}`)
            .join(', ')}
        </dd>
      </dl>
      <h2>Posture</h2>
      <p class="muted">The protections that are enforced, as measured.</p>
      <Table label="Posture" head={['Protection', 'State', 'Measured', 'Mechanism']}>
        {sandbox.posture.map((item) => (
          <tr>
            <th scope="row">{words(item.protection)}</th>
            <td>
              <Badge kind={STATES[item.state] ?? 'plain'}>{words(item.state)}</Badge>
            </td>
            <td>{item.probed ? 'yes' : 'no'}</td>
            <td>
              {visible(item.mechanism)}
              {item.remedy && <div class="muted">{visible(item.remedy)}</div>}
            </td>
          </tr>
        ))}
      </Table>
    </>
  )
}

function limit(key: string, value: unknown): string {
  if (typeof value !== 'number') return String(value)
  if (/memory|disk|size|output/.test(key)) return bytes(value)
  if (/time/.test(key)) return duration(value)
  return String(value)
}
