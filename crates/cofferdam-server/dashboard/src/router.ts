// The view in the fragment of the address, such as `#/sandboxes/ID/files`.

import { useEffect, useState } from 'preact/hooks'

function parts(): string[] {
  return location.hash
    .replace(/^#\/?/, '')
    .split('/')
    .map((part) => {
      try {
        return decodeURIComponent(part)
      } catch {
        return ''
      }
    })
}

export function useRoute(): string[] {
  const [route, setRoute] = useState(parts)
  useEffect(() => {
    const changed = () => setRoute(parts())
    addEventListener('hashchange', changed)
    return () => removeEventListener('hashchange', changed)
  }, [])
  return route
}

export function link(...route: string[]): string {
  return `#/${route.map(encodeURIComponent).join('/')}`
}

export function go(...route: string[]) {
  location.hash = link(...route)
}
