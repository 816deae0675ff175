// The tenant's usage against its quota, and that of all tenants for the operator.

import { useState } from 'preact/hooks'

import { ApiError, get } from './api'
import { bytes, day, duration, name } from './format'
import type { QuotaState, UsageOfDay, UsageRow } from './types'
import { Failure, Field, Loading, Meter, Table, usePolled } from './ui'

const REFRESH = 5000
const DAYS = 7
// Pages of 1000 rows: as many rows as a CSV can have.
const MAX_PAGES = 100

interface Usage {
  usage: UsageRow[]
  cost?: { currency: string; micros: number }
  next: string | null
}

/** Reads all pages of usage. */
async function allUsage(path: string, signal: AbortSignal): Promise<Usage> {
  const all = await get<Usage>(`${path}&limit=1000`, signal)
  for (let pages = 1; all.next !== null && pages < MAX_PAGES; pages++) {
    const page = await get<Usage>(`${path}&limit=1000&after=${encodeURIComponent(all.next)}`, signal)
    all.usage.push(...page.usage)
    if (all.cost && page.cost) all.cost.micros += page.cost.micros
    all.next = page.next
  }
  return all
}

export function UsagePage() {
  // `null` is the tenant of the key.
  const [tenant, setTenant] = useState<string | null>(null)
  const path = tenant === null ? '/v1/quota' : `/v1/admin/quotas/${encodeURIComponent(tenant)}`
  const state = usePolled<QuotaState>((signal) => get(path, signal), REFRESH, [path])
  return (
    <>
      <h1>Usage</h1>
      <div class="title">
        <h2>{tenant === null ? 'Quota' : `Quota of ${name(tenant)}`}</h2>
        {tenant !== null && <button onClick={() => setTenant(null)}>Show this tenant</button>}
      </div>
      <Failure error={state.error} />
      {!state.value && !state.error && <Loading />}
      {state.value && <Quota state={state.value} />}
      <Days onTenant={setTenant} />
    </>
  )
}

function Quota({ state }: { state: QuotaState }) {
  const { quota, today } = state
  const bound = (key: string) => (typeof quota[key] === 'number' ? (quota[key] as number) : null)
  const rows: [string, number, number | null, (value: number) => string][] = [
    ['Sandboxes now', state.sandboxes, bound('sandboxes'), String],
    ['Memory of sandboxes, by their limits', state.memory_mib * 1024 * 1024, bound('memory'), bytes],
    ['Disk of sandboxes, by their limits', state.disk_mib * 1024 * 1024, bound('disk'), bytes],
    ['Snapshots', state.snapshots, bound('snapshots'), String],
    ['Size of snapshots', state.snapshot_bytes, bound('snapshot_bytes'), bytes],
    ['Volumes', state.volumes, bound('volumes'), String],
    ['Size of volumes', state.volume_bytes, bound('volume_bytes'), bytes],
    ['CPU time today', today.cpu_us / 1e6, bound('cpu_seconds_per_day'), duration],
    ['Memory today', gibSeconds(today), bound('memory_gib_seconds_per_day'), (value) => `${Math.round(value)} GiB·s`],
    ['Network today', today.egress_bytes, bound('egress_per_day'), bytes],
    ['Audit records today', today.audit_bytes, bound('audit_per_day'), bytes],
  ]
  const rates: [string, string][] = [
    ['Requests in a second', 'requests_per_second'],
    ['Commands in a second', 'execs_per_second'],
    ['Weight', 'weight'],
  ]
  return (
    <>
      <div class="meters">
        {rows.map(([label, used, limit, text]) => (
          <Meter label={label} used={used} limit={limit} text={limit === null ? `${text(used)}, no limit` : `${text(used)} of ${text(limit)}`} />
        ))}
      </div>
      <dl class="facts">
        {rates.map(([label, key]) => (
          <>
            <dt>{label}</dt>
            <dd>{quota[key] ?? 'no limit'}</dd>
          </>
        ))}
      </dl>
    </>
  )
}

function gibSeconds(usage: UsageOfDay): number {
  return usage.memory_mib_ms / 1024 / 1000
}

function Days({ onTenant }: { onTenant: (tenant: string) => void }) {
  const [all, setAll] = useState(false)
  const today = Math.floor(Date.now() / 86_400_000)
  const list = usePolled<Usage>(
    (signal) => allUsage(`/v1/${all ? 'admin/' : ''}usage?from=${today - DAYS + 1}&to=${today}`, signal),
    all ? 0 : REFRESH,
    [all, today],
  )
  const rows = [...(list.value?.usage ?? [])].reverse().slice(0, 1000)
  const cost = list.value?.cost
  const denied = all && list.error instanceof ApiError && list.error.status === 403
  return (
    <>
      <div class="title">
        <h2>Last {DAYS} days</h2>
        <Field label="Tenants">
          <select value={all ? 'all' : 'own'} onChange={(event) => setAll(event.currentTarget.value === 'all')}>
            <option value="own">This tenant</option>
            <option value="all">All (scope admin)</option>
          </select>
        </Field>
      </div>
      {denied ? <p class="muted">The key lacks the scope admin.</p> : <Failure error={list.error} />}
      {list.value && rows.length === 0 && <p class="muted">Nothing was used.</p>}
      {cost && (
        <p>
          Cost: {(cost.micros / 1e6).toFixed(2)} {name(cost.currency)}
        </p>
      )}
      {rows.length > 0 && (
        <Table
          label="Usage by day"
          head={['Day (UTC)', ...(all ? ['Tenant'] : []), 'Label', 'Sandboxes', 'Commands', 'CPU', 'Memory', 'Network', 'Output', ...(cost ? [`Cost (${name(cost.currency)})`] : [])]}
        >
          {rows.map((row) => (
            <tr>
              <th scope="row">{day(row.day)}</th>
              {all && (
                <td>
                  <button aria-label={`Quota of ${name(row.tenant)}`} onClick={() => onTenant(row.tenant)}>
                    {name(row.tenant)}
                  </button>
                </td>
              )}
              <td>{name(row.label)}</td>
              <td>{row.sandboxes}</td>
              <td>{row.execs}</td>
              <td>{duration(row.cpu_us / 1e6)}</td>
              <td>{Math.round(gibSeconds(row))} GiB·s</td>
              <td>{bytes(row.egress_bytes)}</td>
              <td>{bytes(row.output_bytes)}</td>
              {cost && <td>{((row.cost_micros ?? 0) / 1e6).toFixed(4)}</td>}
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}
