// The server: health, version, backends, and for the operator a summary of its metrics.

import { ApiError, get, send } from './api'
import { bytes, duration, name, words } from './format'
import type { Backend, Pool } from './types'
import { Badge, Failure, Loading, Table, usePolled } from './ui'

const REFRESH = 5000

interface Sample {
  name: string
  labels: Record<string, string>
  value: number
}

interface State {
  ready: boolean
  version: string
}

export function ServerPage() {
  const state = usePolled<State>(
    async (signal) => {
      const { version } = await get<{ version: string }>('/v1/version', signal)
      const ready = await get('/v1/ready', signal).then(
        () => true,
        (error: unknown) => {
          if (error instanceof ApiError && error.status === 503) return false
          throw error
        },
      )
      return { ready, version }
    },
    REFRESH,
    [],
  )
  const backends = usePolled<{ backends: Backend[] }>((signal) => get('/v1/backends', signal), 0, [])
  return (
    <>
      <h1>Server</h1>
      <Failure error={state.error} />
      {!state.value && !state.error && <Loading />}
      {state.value && (
        <dl class="facts">
          <dt>State</dt>
          <dd>
            <Badge kind={state.value.ready ? 'good' : 'warn'}>{state.value.ready ? 'ready' : 'stopping'}</Badge>
          </dd>
          <dt>Version</dt>
          <dd>{state.value.version}</dd>
        </dl>
      )}
      <h2>Backends</h2>
      <Failure error={backends.error} />
      {backends.value && (
        <Table label="Backends" head={['Name', 'Level', 'Capabilities']}>
          {backends.value.backends.map((backend) => (
            <tr>
              <th scope="row">
                {backend.name} {backend.default && <Badge kind="plain">default</Badge>}
              </th>
              <td>{backend.level}</td>
              <td>{backend.capabilities.map(words).join(', ')}</td>
            </tr>
          ))}
        </Table>
      )}
      <Pools />
      <Metrics />
    </>
  )
}

/** The pools of prepared sandboxes, for a key with the scope admin. */
function Pools() {
  const list = usePolled<{ pools: Pool[] }>((signal) => get('/v1/admin/pools', signal), REFRESH, [])
  if (list.error instanceof ApiError && list.error.status === 403) return null
  const pools = list.value?.pools ?? []
  return (
    <>
      <h2>Pools</h2>
      <Failure error={list.error} />
      {list.value && pools.length === 0 && <p class="muted">There are no prepared sandboxes.</p>}
      {pools.length > 0 && (
        <Table label="Pools" head={['Pool', 'Level', 'Idle', 'In use', 'Waiting', 'Warm creates', 'Other creates', 'Failures']}>
          {pools.map((pool) => (
            <tr>
              <th scope="row">
                {name(pool.backend)}, {name(pool.pool)}
              </th>
              <td>{pool.level}</td>
              <td>
                {pool.idle} of {pool.target}
                {pool.refilling > 0 && `, ${pool.refilling} being prepared`}
              </td>
              <td>{pool.claimed}</td>
              <td>{pool.waiting}</td>
              <td>{pool.claims.warm ?? 0}</td>
              <td>{Object.entries(pool.claims).reduce((all, [kind, count]) => all + (kind === 'warm' ? 0 : count), 0)}</td>
              <td>
                {pool.failures + pool.refill_failures}
                {pool.refill_error && `: ${name(pool.refill_error)}`}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}

function Metrics() {
  const metrics = usePolled<Sample[]>(
    async (signal) => parse(await (await send('/v1/metrics', { signal })).text()),
    REFRESH,
    [],
  )
  if (metrics.error instanceof ApiError && metrics.error.status === 403) {
    return (
      <>
        <h2>Metrics</h2>
        <p class="muted">A key with the scope admin shows the queue and counters of all tenants.</p>
      </>
    )
  }
  const samples = metrics.value
  return (
    <>
      <h2>Metrics</h2>
      <Failure error={metrics.error} />
      {samples && (
        <>
          <dl class="facts">
            <dt>Live sandboxes</dt>
            <dd>{sum(samples, 'cofferdam_sandboxes')}</dd>
            <dt>Waiting for room</dt>
            <dd>{sum(samples, 'cofferdam_waiting')}</dd>
            <dt>Requests</dt>
            <dd>{sum(samples, 'cofferdam_requests_total')}</dd>
            <dt>Output of commands</dt>
            <dd>{bytes(sum(samples, 'cofferdam_output_bytes_total'))}</dd>
            <dt>Mean time of a create</dt>
            <dd>{mean(samples, 'cofferdam_create_seconds')}</dd>
          </dl>
          <Counters samples={samples} title="Creates" metric="cofferdam_creates_total" />
          <Counters samples={samples} title="Commands" metric="cofferdam_execs_total" />
          <Counters samples={samples} title="Refusals" metric="cofferdam_denials_total" />
        </>
      )}
    </>
  )
}

function Counters({ samples, title, metric }: { samples: Sample[]; title: string; metric: string }) {
  const rows = samples.filter((sample) => sample.name === metric)
  if (rows.length === 0) return null
  return (
    <Table label={title} head={[title, 'Number']}>
      {rows.map((row) => (
        <tr>
          <th scope="row">{Object.values(row.labels).map(words).join(', ')}</th>
          <td>{row.value}</td>
        </tr>
      ))}
    </Table>
  )
}

function sum(samples: Sample[], metric: string): number {
  return samples.filter((sample) => sample.name === metric).reduce((all, sample) => all + sample.value, 0)
}

function mean(samples: Sample[], metric: string): string {
  const count = sum(samples, `${metric}_count`)
  return count === 0 ? 'none yet' : duration(sum(samples, `${metric}_sum`) / count)
}

/** Parses the text format of OpenMetrics, as far as this server writes it. */
function parse(text: string): Sample[] {
  const samples: Sample[] = []
  for (const line of text.split('\n')) {
    const found = /^([a-z0-9_]+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? ([0-9.e+-]+)/.exec(line)
    if (!found) continue
    const labels: Record<string, string> = {}
    for (const [, key, value] of (found[2] ?? '').matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) labels[key!] = value!
    samples.push({ name: found[1]!, labels, value: Number(found[3]) })
  }
  return samples
}
