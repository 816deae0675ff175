// Bundles the dashboard into the directory that is the argument. The packages are those of the lock file, in
// `node_modules` of this directory or of one above it. `cargo xtask dashboard` installs them and runs this.
//
//     node build.mjs OUT

import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const { build } = createRequire(import.meta.url)('esbuild')
const out = process.argv[2]
await mkdir(out, { recursive: true })

const result = await build({
  absWorkingDir: here,
  entryPoints: { app: 'src/main.tsx' },
  outdir: out,
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['chrome111', 'firefox113', 'safari16.4'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  charset: 'utf8',
  metafile: true,
  logLevel: 'warning',
})

for (const name of ['index.html', 'icon.svg']) await copyFile(join(here, 'src', name), join(out, name))

// The licences of all packages in the bundle.
const directories = Object.keys(result.metafile.inputs)
  .map((file) => /^(.*\bnode_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1])
  .filter(Boolean)
const texts = await Promise.all(
  [...new Set(directories)].map(async (directory) => {
    const { name, version, license } = JSON.parse(await readFile(join(here, directory, 'package.json'), 'utf8'))
    const text = await readFile(join(here, directory, 'LICENSE'), 'utf8')
    return `${name} ${version} (${license})\n\n${text.replace(/\r/g, '').trim()}\n`
  }),
)
await writeFile(join(out, 'licenses.txt'), `The dashboard contains these packages.\n\n${texts.sort().join('\n----\n\n')}`)
