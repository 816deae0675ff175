//! Tests of the differences of TypeScript: types are ignored, and there is another form of import.

use cofferdam_screen::{AnalysisError, Analyzer, Language};

use crate::table;

const CASES: &[(&str, &str)] = &[
    ("import fs from 'fs'", "1:1 import:fs"),
    ("import { type Stats, readFile } from 'fs'", "1:1 import:fs"),
    ("import type { Stats } from 'fs'", ""),
    ("import type fs = require('fs')", ""),
    ("import fs = require('fs')\nfs.readFileSync('x')", "1:1 import:fs"),
    ("export import fs = require('fs')", "1:8 import:fs"),
    ("export type { Stats } from 'fs'", ""),
    ("let x: typeof import('fs')", ""),
    ("let f: Function = g", ""),
    ("const r = require as any\nr('fs')", "2:1 import:fs"),
    ("(<any>require)('fs')", "1:1 import:fs"),
    ("require!('fs')", "1:1 import:fs"),
    ("(eval satisfies any)('1')", "1:2 call:eval"),
    ("class A { constructor(private x = eval('1')) {} }", "1:35 call:eval"),
    ("enum E { A = eval('1') }", "1:14 call:eval"),
    ("namespace N { require('fs') }", "1:15 import:fs"),
    ("function f<T>(x: T): T { return x }", ""),
    ("@eval('x') class A {}", "1:2 call:eval"),
    ("abstract class A { abstract eval(): void }", ""),
    ("declare function require(x: string): any", ""),
    ("declare function require(x: string): any; require('fs')", "1:43 import:fs"),
    ("declare const require: any; require('fs')", "1:29 import:fs"),
    ("declare class process {} process.binding('fs')", "1:26 call:process.binding"),
    ("import { type process } from 'x'; process.binding('fs')", "1:35 call:process.binding"),
];

#[test]
fn types_are_left_alone_and_values_are_seen() {
    table(&Analyzer::default(), Language::TypeScript, CASES);
}

#[test]
fn types_are_no_javascript() {
    let refused = Analyzer::default().check(Language::JavaScript, "let x: number = 1");
    assert!(matches!(refused, Err(AnalysisError::Syntax(_))), "{refused:?}");
}
