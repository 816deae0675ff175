// The commands of a sandbox.

import { useState } from 'preact/hooks'

import { get, post, sandboxPath } from './api'
import { duration, name, since, time } from './format'
import { describeExit, ExecOutput } from './output'
import type { Exec } from './types'
import { Badge, Failure, Field, Input, Loading, Table, useAction, usePolled } from './ui'

const REFRESH = 2000

export function ExecsPanel({ id }: { id: string }) {
  const [line, setLine] = useState('')
  const [followed, setFollowed] = useState<string | null>(null)
  const { busy, error, run } = useAction()
  const path = sandboxPath(id, '/execs')
  const list = usePolled<{ execs: Exec[] }>((signal) => get(`${path}?limit=1000`, signal), REFRESH, [id])
  const start = async (event: Event) => {
    event.preventDefault()
    await run(async () => {
      const made = await post<Exec>(path, { shell: line })
      setFollowed(made!.id)
    })
    list.reload()
  }
  const signal = (exec: Exec, signal: string) => run(() => post(`${path}/${exec.id}/signal`, { signal })).then(list.reload)
  const execs = [...(list.value?.execs ?? [])].reverse()
  return (
    <>
      <form class="line" onSubmit={start}>
        <Field label="Command">
          <Input value={line} onText={setLine} required class="mono" placeholder="uname -a" name="command" />
        </Field>
        <button type="submit" class="primary" disabled={busy}>
          Run
        </button>
      </form>
      <Failure error={error} />
      {followed && (
        <section aria-label="Followed command">
          <h2>Output</h2>
          <p class="mono muted one-line">{name(execs.find((exec) => exec.id === followed)?.command ?? followed)}</p>
          <ExecOutput key={followed} path={`${path}/${followed}`} onEnd={list.reload} />
        </section>
      )}
      <h2>All commands</h2>
      <Failure error={list.error} />
      {list.value === null && !list.error && <Loading />}
      {list.value && execs.length === 0 && <p class="muted">No command was run yet.</p>}
      {execs.length > 0 && (
        <Table label="Commands" head={['Command', 'State', 'Started', '']}>
          {execs.map((exec) => (
            <tr key={exec.id}>
              <th scope="row" class="mono command">
                {name(exec.command)}
              </th>
              <td>
                <ExecState exec={exec} />
              </td>
              <td class="short" title={time(exec.started)}>{since(exec.started)} ago</td>
              <td>
                <div class="buttons">
                  <button aria-label={`Output of ${name(exec.command)}`} onClick={() => setFollowed(exec.id)}>
                    Output
                  </button>
                  {exec.state === 'running' && (
                    <>
                      <button aria-label={`Terminate ${name(exec.command)}`} onClick={() => signal(exec, 'TERM')}>
                        Terminate
                      </button>
                      <button class="danger" aria-label={`Kill ${name(exec.command)}`} onClick={() => signal(exec, 'KILL')}>
                        Kill
                      </button>
                    </>
                  )}
                </div>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}

function ExecState({ exec }: { exec: Exec }) {
  if (exec.state === 'running') return <Badge kind="good">running</Badge>
  if (exec.exit === null) return <><Badge kind="bad">failed</Badge> {exec.error && name(exec.error.detail)}</>
  const success = exec.exit.code === 0 && exec.exit.signal === null && !exec.exit.timed_out
  return (
    <>
      <Badge kind={success ? 'plain' : 'bad'}>{describeExit(exec.exit)}</Badge>{' '}
      <span class="muted">{duration(exec.exit.duration)}</span>
    </>
  )
}
