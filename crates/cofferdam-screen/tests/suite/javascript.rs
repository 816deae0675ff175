//! Tests of findings in JavaScript, and of code without findings.

use cofferdam_screen::{AnalysisError, Analyzer, JavaScriptRules, Language, Rules};

use crate::table;

const SEEN: &[(&str, &str)] = &[
    // Imports.
    ("import fs from 'fs'", "1:1 import:fs"),
    ("import * as fs from 'node:fs'", "1:1 import:fs"),
    ("import { readFile } from 'fs/promises'", "1:1 import:fs"),
    ("import { readFile as r, writeFile } from \"node:fs/promises\"", "1:1 import:fs"),
    ("import 'child_process'", "1:1 import:child_process"),
    ("import x, { exec } from 'child_process'", "1:1 import:child_process"),
    ("import net from 'net'; import tls from 'tls'", "1:1 import:net, 1:24 import:tls"),
    ("import d from 'dgram'", "1:1 import:dgram"),
    ("import h from 'http'", "1:1 import:http"),
    ("import h from 'https'", "1:1 import:https"),
    ("import h from 'http2'", "1:1 import:http2"),
    ("import c from 'cluster'", "1:1 import:cluster"),
    ("import w from 'worker_threads'", "1:1 import:worker_threads"),
    ("import vm from 'vm'", "1:1 import:vm"),
    ("import i from 'inspector/promises'", "1:1 import:inspector"),
    ("import dns from 'dns'", "1:1 import:dns"),
    ("export { readFile } from 'fs'", "1:1 import:fs"),
    ("export * from 'fs'", "1:1 import:fs"),
    ("export * as x from 'node:fs'", "1:1 import:fs"),
    ("export { default } from 'fs'", "1:1 import:fs"),
    ("import('fs')", "1:1 import:fs"),
    ("import('node:fs').then(f)", "1:1 import:fs"),
    ("const fs = await import('fs')", "1:18 import:fs"),
    ("import(`fs`)", "1:1 import:fs"),
    ("import(x)", "1:1 dynamic-import"),
    ("import('data:text/javascript,1')", "1:1 dynamic-import"),
    ("require('fs')", "1:1 import:fs"),
    ("require(\"child_process\").exec('x')", "1:1 import:child_process"),
    ("require('node:child_process')", "1:1 import:child_process"),
    ("require(`child_process`)", "1:1 import:child_process"),
    ("const { exec } = require('child_process')", "1:18 import:child_process"),
    ("const a = 1,\n  fs = require('fs')", "2:8 import:fs"),
    ("require(x)", "1:1 dynamic-import"),
    ("require('./' + x)", "1:1 dynamic-import"),
    ("ä = 'ö'; require('fs')", "1:10 import:fs"),
    ("'日本'\r\nrequire('fs')", "2:1 import:fs"),
    ("'a'\u{2028}require('fs')", "2:1 import:fs"),
    ("#!/usr/bin/env node\nrequire('fs')", "2:1 import:fs"),
    // At any position.
    ("function f() { require('fs') }", "1:16 import:fs"),
    ("async function f() { await import('fs') }", "1:28 import:fs"),
    ("const f = () => require('fs')", "1:17 import:fs"),
    ("class A { f() { require('fs') } }", "1:17 import:fs"),
    ("class A { x = require('fs') }", "1:15 import:fs"),
    ("class A { static { require('fs') } }", "1:20 import:fs"),
    ("class A extends eval('x') {}", "1:17 call:eval"),
    ("if (x) require('fs'); else require('net')", "1:8 import:fs, 1:28 import:net"),
    ("try { require('fs') } catch {} finally { require('net') }", "1:7 import:fs, 1:42 import:net"),
    ("for (const x of require('fs')) {}", "1:17 import:fs"),
    ("while (require('fs')) {}", "1:8 import:fs"),
    ("switch (x) { case require('fs'): break }", "1:19 import:fs"),
    ("x ? require('fs') : 1", "1:5 import:fs"),
    ("x && require('fs')", "1:6 import:fs"),
    ("x ??= require('fs')", "1:7 import:fs"),
    ("`${require('fs')}`", "1:4 import:fs"),
    ("({ a: require('fs') })", "1:7 import:fs"),
    ("({ [eval('x')]: 1 })", "1:5 call:eval"),
    ("({ get a() { return require('fs') } })", "1:21 import:fs"),
    ("function f(x = require('fs')) {}", "1:16 import:fs"),
    ("const { a = require('fs') } = x", "1:13 import:fs"),
    ("label: require('fs')", "1:8 import:fs"),
    ("new (require('vm').Script)('1')", "1:6 import:vm"),
    ("export default require('fs')", "1:16 import:fs"),
    ("with (x) { require('fs') }", "1:12 import:fs"),
    ("return require('fs')", "1:8 import:fs"),
    // Equivalent forms.
    ("const r = require; r('fs')", "1:20 import:fs"),
    ("let r; r = require; r('fs')", "1:21 import:fs"),
    ("var r = x || require; r('fs')", "1:23 import:fs"),
    ("f(); function f() { return r('fs') } var r = require", "1:28 import:fs"),
    ("((r) => 1)(1); const f = (r = require) => r('fs')", "1:43 import:fs"),
    ("module.require('fs')", "1:1 import:fs"),
    ("module['require']('fs')", "1:1 import:fs"),
    ("globalThis.require('fs')", "1:1 import:fs"),
    ("global.require('fs')", "1:1 import:fs"),
    ("globalThis['req' + 'uire']('fs')", "1:1 import:fs"),
    ("const { require: r } = globalThis; r('fs')", "1:36 import:fs"),
    ("process.mainModule.require('fs')", "1:1 import:fs, 1:9 attribute:mainModule"),
    ("require.main.require('fs')", "1:1 import:fs"),
    ("process.getBuiltinModule('fs')", "1:1 import:fs"),
    ("require('module')._load('fs')", "1:1 import:fs"),
    ("module.constructor._load('fs')", "1:1 import:fs"),
    ("import { createRequire } from 'module'\ncreateRequire(import.meta.url)('fs')", "2:1 import:fs"),
    ("import m from 'node:module'\nconst require = m.createRequire(import.meta.url)\nrequire('fs')", "3:1 import:fs"),
    ("import { createRequire as c } from 'module'; const q = c('/'); q('fs')", "1:64 import:fs"),
    ("require.call(null, 'fs')", "1:1 dynamic-import"),
    ("require.apply(null, ['fs'])", "1:1 dynamic-import"),
    ("require.bind(null)('fs')", "1:1 dynamic-import"),
    ("require?.('fs')", "1:1 import:fs"),
    ("module?.require?.('fs')", "1:1 import:fs"),
    ("(0, require)('fs')", "1:1 import:fs"),
    ("process.binding('fs')", "1:1 call:process.binding"),
    ("process['bind' + 'ing']('fs')", "1:1 call:process.binding"),
    ("const p = process; p.binding('fs')", "1:20 call:process.binding"),
    ("import process from 'process'; process.binding('fs')", "1:32 call:process.binding"),
    ("import { binding } from 'node:process'", "1:10 call:process.binding"),
    ("const { binding } = process", "1:9 call:process.binding"),
    ("process._linkedBinding('fs')", "1:1 call:process._linkedBinding, 1:9 attribute:_linkedBinding"),
    ("process.dlopen(m, 'x')", "1:1 call:process.dlopen"),
    ("x['mainModule']", "1:3 attribute:mainModule"),
    // Code from text.
    ("eval(x)", "1:1 call:eval"),
    ("(0, eval)(x)", "1:5 call:eval"),
    ("eval?.(x)", "1:1 call:eval"),
    ("const e = eval; e(x)", "1:11 call:eval, 1:17 call:eval"),
    ("[x].map(eval)", "1:9 call:eval"),
    ("globalThis.eval(x)", "1:1 call:eval"),
    ("globalThis['ev' + 'al'](x)", "1:1 call:eval"),
    ("window.self.eval(x)", "1:1 call:eval"),
    ("const { eval: e } = globalThis", "1:9 call:eval"),
    ("let e; ({ eval: e } = globalThis); e(x)", "1:11 call:eval, 1:36 call:eval"),
    ("eval.call(null, x)", "1:1 call:eval"),
    ("new Function('return 1')", "1:5 call:Function"),
    ("Function('return 1')()", "1:1 call:Function"),
    ("const F = Function; new F('x')", "1:11 call:Function, 1:25 call:Function"),
    ("x.constructor.constructor('return 1')()", "1:1 call:Function"),
    ("[]['constructor']['constructor']('return 1')()", "1:1 call:Function"),
    ("''['constr' + 'uctor'].constructor('1')", "1:1 call:Function"),
    ("Reflect.construct(Function, ['1'])", "1:19 call:Function"),
    ("eval('require(\"fs\")')", "1:1 call:eval"),
    ("new Function('a', 'return require(\"fs\")')", "1:5 call:Function"),
    ("x.constructor.constructor('return process.binding(1)')()", "1:1 call:Function"),
    // Concatenated texts.
    ("require('f' + 's')", "1:1 import:fs"),
    ("require(`${'f'}s`)", "1:1 dynamic-import"),
    ("require('f'.concat('s'))", "1:1 dynamic-import"),
    ("require(['f', 's'].join(''))", "1:1 dynamic-import"),
    ("require('\\x66\\u{73}')", "1:1 import:fs"),
    // Dynamic imports with unknown names.
    ("for (let n in x) require(n)", "1:18 dynamic-import"),
    ("for (const n of x) import(n)", "1:20 dynamic-import"),
    ("let { n } = x; require(n)", "1:16 dynamic-import"),
    // Code that is a different program as a script than as a module, or in an async function of a script.
    ("var x=1,y=1; x<!--y /*\nrequire('child_process') //*/", "2:1 import:child_process"),
    ("globalThis.await=1; var g=1; await /require('fs')/g", "1:37 import:fs"),
    ("await /1; require('fs')/g", "1:11 import:fs"),
    ("await /x/g\n--> /*\nrequire('fs') //*/", "3:1 import:fs"),
    ("const x = await import('fs')\nrequire('fs')", "1:17 import:fs, 2:1 import:fs"),
    // Parts of modules.
    ("require('_tls_wrap')", "1:1 import:_tls_wrap"),
    ("import { ClientRequest } from '_http_client'", "1:1 import:_http_client"),
    ("require('node:_http_agent')", "1:1 import:_http_agent"),
    ("require('_stream_wrap')", "1:1 import:_stream_wrap"),
    ("require('node:sqlite'); require('node:test')", "1:1 import:node:sqlite, 1:25 import:node:test"),
    ("process.getBuiltinModule('node:test/reporters')", "1:1 import:node:test"),
    // The class of modules.
    ("require('module').prototype.require('fs')", "1:1 import:fs"),
    ("module.__proto__.require('fs')", "1:1 import:fs"),
    ("module.constructor.prototype.require('fs')", "1:1 import:fs"),
    ("import { Module } from 'module'; Module.prototype.require('fs')", "1:34 import:fs"),
    ("module._compile('require(`fs`)', 'x')", "1:1 call:module._compile"),
    ("globalThis.process.binding('fs')", "1:1 call:process.binding"),
    ("process.execve('/bin/sh', [])", "1:1 call:process.execve"),
    // Importing functions that are passed on.
    ("let x; ({ a: { eval: x } } = { a: globalThis }); x(1)", ""),
    // A declared name that still has its meaning in Node.
    ("var require; require('fs')", "1:14 import:fs"),
    ("require('fs'); var require = 1", "1:1 import:fs"),
    ("var process; process.binding('fs')", "1:14 call:process.binding"),
    ("var eval; eval(x)", "1:11 call:eval"),
    ("{ var require } require('fs')", "1:17 import:fs"),
    ("{ function require() {} } require('child_process')", "1:27 import:child_process"),
    ("{ function process() {} } process.binding('fs'); export {}", "1:27 call:process.binding"),
    ("function f() { 'use strict'; { function eval2() {} function require() {} } require('fs') }", "1:76 import:fs"),
    ("const r = require; function f() { 'use strict'; { function r() {} } r('fs') }", "1:69 import:fs"),
    ("(class require {}); require('fs')", "1:21 import:fs"),
];

const NOT_SEEN: &[&str] = &[
    "",
    "import path from 'path'",
    "import os from 'node:os'",
    "import { readFileSync } from './fs'",
    "import fs from './fs.js'",
    "import fs from 'my-fs'",
    "import x from 'fs-extra'",
    "import { createRequire } from 'module'",
    "import process from 'process'; process.exit(0)",
    "export { a } from './a'",
    "export const fs = 1",
    "import('./fs')",
    "const x = await import('path')",
    "require('path')",
    "require('./child_process')",
    "require('lodash/fs')",
    "'require(\"fs\")'",
    "// require('fs')",
    "/* require('fs') */",
    "/require('fs')/",
    "`require('fs')`",
    "const fs = 1; fs.readFile('x')",
    "fs.readFile('x')",
    "x.require('fs')",
    "x.eval('1')",
    "this.eval(x)",
    "model.eval()",
    "function require(x) { return x } require('fs')",
    "require('fs'); function require(x) { return x }",
    "const require = (x) => x; require('fs')",
    "function f(require) { return require('fs') }",
    "const f = (require) => require('fs')",
    "{ let eval2 = 1; let require = f; require('fs') }",
    "try {} catch (require) { require('fs') }",
    "import require from './mine'; require('fs')",
    "class require {} new require('fs')",
    "function f(eval_) { eval_(1) }",
    "const { eval: x } = mine; x(1)",
    "mine.eval; ({ eval: 1 })",
    "({ eval() {} })",
    "class A { eval() {} static require() {} }",
    "x instanceof Function",
    "typeof x === 'function'",
    "Function.prototype.toString.call(f)",
    "x.constructor.name",
    "x.constructor === Object",
    "class A { constructor() {} }",
    "this.constructor.create()",
    "process.exit(1)",
    "process.env.HOME",
    "process.stdout.write('x')",
    "process.argv.slice(2)",
    "require.resolve('fs')",
    "module.exports = { a: 1 }",
    "exports.fs = 1",
    "x.mainmodule",
    "x.binding('fs')",
    "JSON.parse('{}')",
    "setTimeout(() => {}, 1)",
    "new Map([['fs', 1]])",
    "const a = b / c / d; const e = /[/(]/g",
    "a\n/b/g",
    "for await (const x of y) {}",
    "const x = await y",
    "return 1",
    "with (x) { y }",
    "var await = 1",
    "010 + 1",
    "label: for (;;) break label",
    "class A { #eval; f() { return this.#eval() } }",
    "a?.b?.[c]?.(d)",
    "a ??= b; c ||= d; 1_000n",
    "import data from './x.json' with { type: 'json' }",
    "async () => { await using x = y }",
    "<!-- a comment of the web",
    "async function f() { await g(x --> 0) }",
    "const x = await (f)(1) /2/ 3",
    "require('sqlite'); require('test'); require('quic')",
    "require('./_tls_wrap')",
    "class A { constructor() { this.process = 1; this.require = f } g() { this.process.binding(1); this.require('fs') } }",
    "this.x = 1; this.process = x; this.process.kill()",
    "typeof require === 'function' && require.main === module && main()",
    "require.resolve(x); require.main.filename; require.extensions['.js']",
    "process.env[x]; process.argv[i]; process.on(x, f)",
    "globalThis[x] = 1; global['x'] = y; module.exports[x] = z",
    "const { a = 1, b: { c } } = require('./x'); ({ a, b: c } = d); [e, f] = [f, e]",
    "exports.f = async (x) => { const { y } = await import('path'); return y(x) }",
    "[1, 2].map(String).filter(Boolean)",
    "Object.keys(globalThis); Object.assign({}, x, { ...y }); Object.values(process.env)",
    "for (let i = 10; i --> 0;) f(i)",
    "const { [x]: y } = z; ({ [x]: y } = z); Reflect.get(z, x); Reflect.get(process, 'env')",
    "const { ['env']: e, [`argv`]: a } = process",
    "function f() { var require; require('fs') }",
    "{ function require() {} require('fs') }",
    "function f() { return arguments[1]('fs') }",
    "let arguments2; x.arguments[1]('fs'); ({ arguments: 1 })",
];

/// Harmless code with findings, as documented.
const FALSE: &[(&str, &str)] = &[
    ("let r = require; r = mine; r('fs')", "1:28 import:fs"),
    ("if (false) require('fs')", "1:12 import:fs"),
    ("console.log(eval.name)", "1:13 call:eval"),
];

/// Code without findings that evades the rules, as documented.
const GETS_BY: &[&str] = &[
    "fetch('http://example.com')",
    "this.eval('1')",
    "with (process) { binding('fs') }",
    "import('./payload.mjs')",
    "Reflect.get(...[process, name])",
    "let p; for (p of [process]) p[name]",
    "process.kill(1)",
    "['fs'].map(require)",
    "process[name]('fs')",
];

fn screen() -> Analyzer {
    Analyzer::default()
}

/// Promise (Static analysis and audit log): Static analysis finds forbidden imports, calls and attributes of
/// JavaScript, as a module and as a script.
#[test]
fn forbidden_use_is_found_at_its_position() {
    assert!(table(&screen(), Language::JavaScript, SEEN) >= 120);
}

/// Promise (Static analysis and audit log): Static analysis reports no permitted JavaScript code.
#[test]
fn permitted_code_is_not_reported() {
    let cases: Vec<(&str, &str)> = NOT_SEEN.iter().map(|code| (*code, "")).collect();
    table(&screen(), Language::JavaScript, &cases);
}

#[test]
fn listed_findings_and_evasions_are_correct() {
    table(&screen(), Language::JavaScript, FALSE);
    let cases: Vec<(&str, &str)> = GETS_BY.iter().map(|code| (*code, "")).collect();
    table(&screen(), Language::JavaScript, &cases);
}

#[test]
fn submodule_of_a_forbidden_module_can_be_allowed() {
    let javascript = JavaScriptRules { allow_imports: vec!["fs/promises".to_owned()], ..JavaScriptRules::default() };
    let screen = Analyzer::new(Rules { javascript, ..Rules::default() });
    table(
        &screen,
        Language::JavaScript,
        &[
            ("import { readFile } from 'node:fs/promises'", ""),
            ("require('fs/promises').readFile('x')", ""),
            ("require('fs')", "1:1 import:fs"),
        ],
    );
}

#[test]
fn syntax_errors_have_a_position() {
    for (code, line, column) in [
        ("const x = ;", 1, 11),
        ("f(\n", 2, 1),
        ("let ö = 'a", 1, 9),
        ("x = 1;\n}", 2, 1),
        ("import fs from 'fs'\nconst = 1", 2, 7),
        ("def f(): pass", 1, 4),
    ] {
        let Err(AnalysisError::Syntax(error)) = screen().check(Language::JavaScript, code) else {
            panic!("{code:?} is read")
        };
        assert_eq!((error.line, error.column), (line, column), "{code:?}: {error}");
    }
}
