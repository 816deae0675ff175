import { useEffect, useRef, useState } from 'preact/hooks'

import { ApiError, get, onRefused, storeKey, storedKey } from './api'
import { AuditPage } from './audit'
import { link, useRoute } from './router'
import { SandboxPage } from './sandbox'
import { SandboxesPage } from './sandboxes'
import { ServerPage } from './server'
import { SnapshotsPage } from './snapshots'
import { Failure, Field, Input, Loading, useAction } from './ui'
import { UsagePage } from './usage'

const PAGES: [string, string][] = [
  ['sandboxes', 'Sandboxes'],
  ['snapshots', 'Snapshots'],
  ['usage', 'Usage'],
  ['audit', 'Audit'],
  ['server', 'Server'],
]

type Access = 'unknown' | 'granted' | 'refused'

/** Checks the key, or that none is needed. A key may lack the scope of this look-up. */
async function isAccepted(): Promise<boolean> {
  try {
    await get('/v1/backends')
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return false
    if (error instanceof ApiError && error.status === 403) return true
    throw error
  }
  return true
}

export function App() {
  const [access, setAccess] = useState<Access>('unknown')
  const [error, setError] = useState<unknown>(null)
  const check = () => {
    setError(null)
    isAccepted().then((accepted) => setAccess(accepted ? 'granted' : 'refused'), setError)
  }
  useEffect(() => {
    onRefused(() => {
      storeKey(null)
      setAccess('refused')
    })
    check()
  }, [])
  if (error) {
    return (
      <main class="narrow">
        <h1>Cofferdam</h1>
        <Failure error={error} />
        <button onClick={check}>Try again</button>
      </main>
    )
  }
  if (access === 'unknown') return <Loading />
  if (access === 'refused') return <Login onKey={() => setAccess('granted')} />
  return <Frame />
}

function Login({ onKey }: { onKey: () => void }) {
  const [key, setKey] = useState('')
  const { busy, error, run } = useAction()
  const submit = async (event: Event) => {
    event.preventDefault()
    const done = await run(async () => {
      storeKey(key.trim())
      if (!(await isAccepted())) throw new Error('The server does not accept this key.')
    })
    if (done) onKey()
    else storeKey(null)
  }
  return (
    <main class="narrow">
      <h1>Cofferdam</h1>
      <form onSubmit={submit}>
        <Field label="API key" hint="This tab keeps the key until it is closed. cofferdam keys create makes one.">
          <Input value={key} onText={setKey} type="password" required autofocus name="key" />
        </Field>
        <Failure error={error} />
        <div class="buttons">
          <button type="submit" class="primary" disabled={busy}>
            {busy ? 'Checking…' : 'Log in'}
          </button>
        </div>
      </form>
    </main>
  )
}

function Frame() {
  const [page = '', id, tab, ...rest] = useRoute()
  const main = useRef<HTMLElement>(null)
  const current = PAGES.some(([key]) => key === page) ? page : 'sandboxes'
  useEffect(() => {
    document.title = `${id ? 'Sandbox' : PAGES.find(([key]) => key === current)![1]} · Cofferdam`
  }, [current, id])
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault()
          main.current?.focus()
        }}
      >
        Skip to content
      </a>
      <header>
        <a class="brand" href={link('sandboxes')}>
          <img src="/assets/icon.svg" alt="" width="24" height="24" /> Cofferdam
        </a>
        <nav aria-label="Main">
          {PAGES.map(([key, title]) => (
            <a href={link(key)} aria-current={current === key ? 'page' : undefined}>
              {title}
            </a>
          ))}
        </nav>
        {storedKey() !== null && (
          <button
            class="quiet"
            onClick={() => {
              storeKey(null)
              location.reload()
            }}
          >
            Log out
          </button>
        )}
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        {current === 'sandboxes' && (id ? <SandboxPage key={id} id={id} tab={tab ?? ''} rest={rest} /> : <SandboxesPage />)}
        {current === 'snapshots' && <SnapshotsPage />}
        {current === 'usage' && <UsagePage />}
        {current === 'audit' && <AuditPage />}
        {current === 'server' && <ServerPage />}
      </main>
      <footer>
        <a href="/assets/licenses.txt">Licences</a>
      </footer>
    </>
  )
}
