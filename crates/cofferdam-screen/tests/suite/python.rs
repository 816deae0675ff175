//! Tests of findings in Python, and of code without findings.

use cofferdam_screen::{AnalysisError, Analyzer, Language, PythonRules, Rules};

use crate::table;

const SEEN: &[(&str, &str)] = &[
    // Imports.
    ("import os", "1:8 import:os"),
    ("import os as x", "1:8 import:os"),
    ("import os.path", "1:8 import:os"),
    ("import os.path as p", "1:8 import:os"),
    ("import json, os, re", "1:14 import:os"),
    ("import os, subprocess", "1:8 import:os, 1:12 import:subprocess"),
    ("import subprocess", "1:8 import:subprocess"),
    ("import shutil", "1:8 import:shutil"),
    ("import pathlib", "1:8 import:pathlib"),
    ("import socket", "1:8 import:socket"),
    ("import posix", "1:8 import:posix"),
    ("import _socket", "1:8 import:_socket"),
    ("from os import system", "1:16 import:os"),
    ("from os import system as s", "1:16 import:os"),
    ("from os import path, system", "1:16 import:os"),
    ("from os import *", "1:16 import:os"),
    ("from os.path import join", "1:21 import:os"),
    ("from pathlib import (\n    Path,\n)", "2:5 import:pathlib"),
    ("from glob import os", "1:18 import:os"),
    ("x = 1; import os", "1:15 import:os"),
    ("\n\n  \nimport os\n", "4:8 import:os"),
    ("ä = 'ö'; import os", "1:17 import:os"),
    ("s = '日本'\r\nimport os", "2:8 import:os"),
    // At any position.
    ("def f():\n    import os", "2:12 import:os"),
    ("async def f():\n    import os", "2:12 import:os"),
    ("class A:\n    import os", "2:12 import:os"),
    ("class A:\n  def f(self):\n    import os", "3:12 import:os"),
    ("try:\n    import os\nexcept ImportError:\n    os = None", "2:12 import:os"),
    ("try:\n    pass\nfinally:\n    import os", "4:12 import:os"),
    ("if x:\n    pass\nelif y:\n    import os", "4:12 import:os"),
    ("while x:\n    import os", "2:12 import:os"),
    ("for x in y:\n    pass\nelse:\n    import os", "4:12 import:os"),
    ("with x as y:\n    import os", "2:12 import:os"),
    ("match x:\n    case 1:\n        import os", "3:16 import:os"),
    ("f = lambda: __import__('os')", "1:13 call:__import__, 1:13 import:os"),
    ("[__import__('os') for x in y]", "1:2 call:__import__, 1:2 import:os"),
    ("{x: eval(x) for x in y}", "1:5 call:eval"),
    ("(x for x in y if eval(x))", "1:18 call:eval"),
    ("@eval('x')\ndef f(): pass", "1:2 call:eval"),
    ("@eval\nclass A: pass", "1:2 call:eval"),
    ("def f(x=eval('1')): pass", "1:9 call:eval"),
    ("def f(x: eval('1')) -> exec('2'): pass", "1:10 call:eval, 1:24 call:exec"),
    ("lambda x=eval: x", "1:10 call:eval, 1:16 call:eval"),
    ("f'{eval(x)}'", "1:4 call:eval"),
    ("x[eval(y)]", "1:3 call:eval"),
    ("x = y if eval(z) else w", "1:10 call:eval"),
    ("assert eval(x)", "1:8 call:eval"),
    ("raise eval(x)", "1:7 call:eval"),
    ("async def f():\n  await eval(x)", "2:9 call:eval"),
    ("print(*eval(x), **exec(y))", "1:8 call:eval, 1:19 call:exec"),
    // Calls.
    ("eval(x)", "1:1 call:eval"),
    ("exec(x)", "1:1 call:exec"),
    ("compile(x, 'f', 'exec')", "1:1 call:compile"),
    ("__import__(x)", "1:1 call:__import__, 1:1 dynamic-import"),
    ("map(eval, xs)", "1:5 call:eval"),
    ("f = eval\nf('1')", "1:5 call:eval, 2:1 call:eval"),
    ("a = b = eval\nb(x)", "1:9 call:eval, 2:1 call:eval"),
    ("(f, g) = (print, eval)\ng(x)", "1:18 call:eval, 2:1 call:eval"),
    ("if (f := eval):\n    f(x)", "1:10 call:eval, 2:5 call:eval"),
    ("def g():\n    return f(x)\nf = eval", "2:12 call:eval, 3:5 call:eval"),
    ("def g(f=eval):\n    f(x)", "1:9 call:eval, 2:5 call:eval"),
    ("f = print if x else eval\nf(x)", "1:21 call:eval, 2:1 call:eval"),
    ("f = x or eval\nf(x)", "1:10 call:eval, 2:1 call:eval"),
    ("def g():\n    global f\n    f = eval\nf(x)", "3:9 call:eval, 4:1 call:eval"),
    ("for f in [print, eval]:\n    f(x)", "1:18 call:eval"),
    ("d = {'a': eval}", "1:11 call:eval"),
    ("self.f = eval", "1:10 call:eval"),
    ("if x:\n    eval = None\neval(y)", "3:1 call:eval"),
    // Through modules.
    ("import builtins\nbuiltins.eval(x)", "2:1 call:eval"),
    ("import builtins as b\nb.__import__('os')", "2:1 call:__import__, 2:1 import:os"),
    ("from builtins import eval", "1:22 call:eval"),
    ("from builtins import exec as e\ne(x)", "1:22 call:exec, 2:1 call:exec"),
    ("import importlib\nimportlib.import_module('os')", "2:1 import:os"),
    ("import importlib as i\ni.import_module('os.path')", "2:1 import:os"),
    ("from importlib import import_module\nimport_module('os')", "2:1 import:os"),
    ("from importlib import import_module as im\nim(name='socket')", "2:1 import:socket"),
    ("import importlib\no = importlib\no.import_module('os')", "3:1 import:os"),
    ("import importlib\nf = importlib.import_module\nf('os')", "3:1 import:os"),
    ("import importlib\nf = getattr(importlib, 'import_' + 'module')\nf('os')", "3:1 import:os"),
    ("import importlib\nimportlib.import_module(x)", "2:1 dynamic-import"),
    ("import importlib.util\nimportlib.util.find_spec('os')", "2:1 import:os"),
    ("import importlib\nimportlib.__import__('os')", "2:1 import:os"),
    ("m = __import__\nm('os')", "1:5 call:__import__, 2:1 call:__import__, 2:1 import:os"),
    ("__import__('os.path')", "1:1 call:__import__, 1:1 import:os"),
    ("__import__('os').system('ls')", "1:1 call:__import__, 1:1 import:os"),
    ("__import__(name='os')", "1:1 call:__import__, 1:1 import:os"),
    ("__import__('importlib').import_module('os')", "1:1 call:__import__, 1:1 import:os"),
    ("import sys\nsys.modules['os']", "2:1 import:os"),
    ("import sys\nsys.modules.get('os')", "2:1 import:os"),
    ("import sys as s\nm = s.modules\nm['o' + 's'].system('x')", "3:1 import:os"),
    ("from sys import modules as m\nm['os']", "2:1 import:os"),
    ("import glob\nglob.os.system('x')", "2:1 import:os"),
    ("import runpy\nrunpy.run_module('os')", "2:1 import:os"),
    // Modules of a session that another program imported.
    ("sys.modules['os']", "1:1 import:os"),
    ("importlib.import_module('os')", "1:1 import:os"),
    // Attributes, and names in texts.
    ("().__class__.__base__.__subclasses__()", "1:23 attribute:__subclasses__"),
    ("f.__globals__['x']", "1:3 attribute:__globals__"),
    ("f.__code__", "1:3 attribute:__code__"),
    ("f.__globals__['__builtins__']", "1:3 attribute:__globals__, 1:15 attribute:__builtins__"),
    ("getattr(f, '__glo' + 'bals__')", "1:12 attribute:__globals__"),
    ("import sys\nsys._getframe().f_back.f_globals", "2:17 attribute:f_back, 2:24 attribute:f_globals"),
    ("(x for x in y).gi_frame", "1:16 attribute:gi_frame"),
    ("object.__getattribute__(f, '__globals__')", "1:28 attribute:__globals__"),
    ("getattr(__builtins__, 'eval')", "1:1 call:eval, 1:9 attribute:__builtins__"),
    ("__builtins__.eval(x)", "1:1 attribute:__builtins__, 1:1 call:eval"),
    ("__builtins__['eval'](x)", "1:1 attribute:__builtins__, 1:1 call:eval"),
    ("__builtins__.__dict__['eval'](x)", "1:1 attribute:__builtins__, 1:1 call:eval"),
    ("vars(__builtins__)['eval'](x)", "1:1 call:eval, 1:6 attribute:__builtins__"),
    ("globals()['__builtins__']", "1:11 attribute:__builtins__"),
    ("import builtins\ngetattr(builtins, 'ev' + 'al')(x)", "2:1 call:eval"),
    ("import builtins\nbuiltins.__dict__['eval'](x)", "2:1 call:eval"),
    // Concatenated texts.
    ("__import__('o' 's')", "1:1 call:__import__, 1:1 import:os"),
    ("__import__('o' + 's')", "1:1 call:__import__, 1:1 import:os"),
    ("__import__(f'o{\"s\"}')", "1:1 call:__import__, 1:1 dynamic-import"),
    ("__import__(''.join(['o', 's']))", "1:1 call:__import__, 1:1 dynamic-import"),
    ("__import__(''.join(('o', 's')))", "1:1 call:__import__, 1:1 dynamic-import"),
    ("__import__('so'[::-1])", "1:1 call:__import__, 1:1 dynamic-import"),
    ("__import__('xosx'[1:3])", "1:1 call:__import__, 1:1 dynamic-import"),
    ("__import__(chr(111) + chr(115))", "1:1 call:__import__, 1:1 dynamic-import"),
    ("__import__('\\x6f\\163')", "1:1 call:__import__, 1:1 import:os"),
    // Wildcard imports.
    ("from importlib import *\nimport_module('subprocess')", "2:1 import:subprocess"),
    ("from builtins import *\neval(x)", "2:1 call:eval"),
    ("from mine import *\neval(x)", "2:1 call:eval"),
    // Importing functions that are passed on.
    ("from importlib import import_module as m\nf, g = m, 1\nf('os')", "3:1 import:os"),
    ("from importlib import import_module as m\ndef g(f=m):\n    f('os')", "3:5 import:os"),
    ("from importlib import import_module as m\n(f := m)('os')", "2:1 import:os"),
    ("import_module('os')", "1:1 import:os"),
    // Through getter functions.
    ("import importlib\nimportlib.import_module(**x)", "2:1 dynamic-import"),
    ("import builtins\nobject.__getattribute__(builtins, 'eval')", "2:1 call:eval"),
    ("import sys\ng = sys.modules.get\ng('os')", "3:1 import:os"),
    ("import ｏｓ\nｅｖａｌ(x)", "1:8 import:os, 2:1 call:eval"),
    // Names that are bound late or never.
    ("eval.__doc__ if False else 1\ndef eval(): pass", "1:1 call:eval"),
    ("def f():\n    eval(x)\nf()\neval = 1", "2:5 call:eval"),
    ("class A:\n    global exec\n    exec = 1\n    exec(x)", "4:5 call:exec"),
    ("class A:\n    if x:\n        eval = 1\n    eval(y)", "4:5 call:eval"),
    ("with suppress(E):\n    f()\n    eval = 1\neval(x)", "4:1 call:eval"),
];

const NOT_SEEN: &[&str] = &[
    "",
    "import json",
    "import os_helpers",
    "import xos, oss",
    "import my.os",
    "from . import os",
    "from .os import system",
    "from .. import socket as s",
    "from my.os import system",
    "import importlib",
    "import sys",
    "import builtins",
    "import re\nre.compile('x')",
    "x = 'import os'",
    "# import os",
    "'''\nimport os\n'''",
    "def f():\n    '''import os'''",
    "print('eval(x)')",
    "os = 1",
    "os.system('x')",
    "self.os.system('x')",
    "x.os",
    "self.eval(x)",
    "df.eval('a + b')",
    "model.eval()",
    "pattern.compile()",
    "x.exec()",
    "cursor.exec('select 1')",
    "def eval(x): return x\neval(1)",
    "class compile: pass\ncompile()",
    "def f(eval): return eval(1)",
    "lambda exec: exec(1)",
    "eval = print\neval(1)",
    "from ast import literal_eval as eval\neval('1')",
    "from my import eval\neval('1')",
    "def f():\n    eval = print\n    return eval(1)",
    "def f():\n    eval(1)\n    eval = g",
    "for eval in x: pass",
    "class A:\n    def eval(self): return self.eval()",
    "class A:\n    eval = print\n    eval(1)",
    "f(eval=1)",
    "{'eval': 1}['eval']",
    "d['os']",
    "d.get('os')",
    "import sys\nsys.modules['json']",
    "import sys\nsys.modules.get('re')",
    "import importlib\nimportlib.import_module('json')",
    "import importlib\nimportlib.import_module('.os', 'my')",
    "getattr(x, 'eval')",
    "getattr(x, 'os')",
    "getattr(x, name)",
    "import builtins\nbuiltins.print(1)",
    "import builtins\ngetattr(builtins, 'len')",
    "open('f').read()",
    "input()",
    "x.__class__.__name__",
    "x.__dict__",
    "x.__doc__",
    "if __name__ == '__main__': pass",
    "def f():\n    f_back = 1\n    return f_back",
    "'__globals__'",
    "x = {'__globals__'}",
    "with open('x') as socket:\n    socket.read()",
    "import numpy as np\nnp.linalg.eig(x)",
    "def f(x):\n    match x:\n        case {'eval': eval}:\n            eval(1)",
    "try:\n    pass\nexcept E as eval:\n    raise",
    "type X = int",
    "def f[T](x: T) -> T: return x",
    "async def f():\n    async with x as y:\n        await y.eval()",
    "print(f'{x!r:>{w}} os')",
    "[os for os in x]",
    "x: 'os' = 1",
    "@property\ndef os(self): pass",
    "global_os = lambda: 1",
    "exec = print\ndef f(): exec(1)\nf()",
    "class A:\n    def f(self): return self.exec(1)\n    def exec(self, x): pass",
    "if x:\n    class A:\n        eval = print\n        eval(1)",
    "def f():\n    if x:\n        eval = print\n    eval(1)",
    "[eval(1) for eval in x]",
    "from mine import *\nfrom tkinter import *\nRoot()",
    "from importlib import *\nimport_module('json')",
    "from sys import *\nprint(argv)",
    "from math import *\nsin(1)",
    "import sys\nsys.modules[__name__].x",
    "import sys\nsys.modules[cls.__module__]",
    "import sys\n'json' in sys.modules",
    "import sys\nlen(sys.modules), sorted(sys.modules)",
    "import sys\nfor name in sys.modules: print(name)",
    "import sys\nwith patch.dict(sys.modules, {'x': None}): pass",
    "import sys\nsys.modules.keys()",
    "import operator\ngetattr(operator, name)(1, 2)",
    "from operator import attrgetter, itemgetter\nsorted(x, key=attrgetter('a', 'b')); max(y, key=itemgetter(1))",
    "import operator\nmap(operator.methodcaller('strip'), x)",
    "from functools import reduce\nreduce(getattr, 'a.b'.split('.'), x)",
    "getattr(self, name)()",
    "import builtins\nmonkeypatch.setattr(builtins, 'open', f); mock.patch.object(builtins, 'print')",
    "import sys\nsetattr(sys, 'x', 1); isinstance(sys, T)",
    "import sys\nmatch sys.platform:\n    case 'linux': pass",
    "match x:\n    case A(modules=m): m['os']",
    "getattr(*x)",
    "print(*map(str, x), **y)",
    "x.__self__.eval(y)",
    "f.__call__(1)",
    "import builtins\nhasattr(builtins, name); dir(builtins)",
    "from importlib import import_module\nif import_module is None: import_module = f",
    "from importlib import import_module\nprint(import_module.__doc__)",
    "class A:\n    os = 1\n    def f(self): return self.os",
    "import sys\nsys.stdout.write('x'); sys.exit(main(sys.argv))",
    "vars(self).items(), x.__dict__.values(), globals()[name]",
];

/// Harmless code with findings, as documented.
const FALSE: &[(&str, &str)] = &[
    ("import mine\nmine.os", "2:1 import:os"),
    ("try:\n    eval = mine\nexcept E:\n    pass\neval(1)", "5:1 call:eval"),
    ("f = eval\ndef g():\n    return f(1)\nf = print", "1:5 call:eval, 3:12 call:eval"),
    ("if False:\n    import os", "2:12 import:os"),
];

/// Code without findings that evades the rules, as documented.
const GETS_BY: &[&str] = &[
    "import io\nio.open('x')",
    "import base64\nx = base64.b64decode('b3M=').decode()\ng[x]",
    "import pickle\npickle.loads(data)",
    "import ctypes\nctypes.CDLL(None).system(b'ls')",
    "import multiprocessing\nmultiprocessing.Process(target=f).start()",
    "import asyncio\nasyncio.create_subprocess_shell('ls')",
    "class A:\n    m = sys\nA().m.modules[key]",
    "'{0.__globals__}'.format(f)",
];

#[test]
fn listed_findings_and_evasions_are_correct() {
    table(&screen(), Language::Python, FALSE);
    let cases: Vec<(&str, &str)> = GETS_BY.iter().map(|code| (*code, "")).collect();
    table(&screen(), Language::Python, &cases);
}

fn screen() -> Analyzer {
    Analyzer::default()
}

/// Promise (Static analysis and audit log): Static analysis finds forbidden imports, calls and attributes of Python by
/// line and column, also through simple aliases.
#[test]
fn forbidden_use_is_found_at_its_position() {
    assert!(table(&screen(), Language::Python, SEEN) >= 120);
}

/// Promise (Static analysis and audit log): Static analysis reports no permitted Python code.
#[test]
fn permitted_code_is_not_reported() {
    let cases: Vec<(&str, &str)> = NOT_SEEN.iter().map(|code| (*code, "")).collect();
    table(&screen(), Language::Python, &cases);
}

#[test]
fn a_submodule_that_is_wanted_does_not_bring_its_parent() {
    let python = PythonRules { allow_imports: vec!["os.path".to_owned()], ..PythonRules::default() };
    let screen = Analyzer::new(Rules { python, ..Rules::default() });
    table(
        &screen,
        Language::Python,
        &[
            ("import os.path\nos.path.join('a', 'b')", ""),
            ("import os.path as p\np.join('a')", ""),
            ("from os import path", ""),
            ("from os.path import join", ""),
            ("from os import path, system", "1:22 import:os"),
            ("import os", "1:8 import:os"),
            ("import os.path\nos.system('x')", "2:1 import:os"),
            ("import os.path\nx = os\nx.system('x')", "3:1 import:os"),
            ("import os.path\ngetattr(os, 'sys' + 'tem')", "2:1 import:os"),
            ("from os import path\npath.os.system('x')", "2:1 import:os"),
            ("import os.path as p\np.os", "2:1 import:os"),
        ],
    );
}

#[test]
fn syntax_errors_have_a_position() {
    for (code, line, column) in [
        ("x = (1\ny = 2", 2, 1),
        ("def f(:\n  pass", 1, 7),
        ("x = 'a", 1, 5),
        ("print 'hello'", 1, 7),
        ("if x:\npass", 2, 1),
        ("ö = )", 1, 5),
        ("x = 1\n  y = 2", 2, 1),
    ] {
        let Err(AnalysisError::Syntax(error)) = screen().check(Language::Python, code) else {
            panic!("{code:?} is read")
        };
        assert_eq!((error.line, error.column), (line, column), "{code:?}: {error}");
    }
}

#[test]
fn a_required_version_restricts_the_syntax() {
    let newer = [
        ("match x:\n    case 1: pass", "3.9"),
        ("def f[T](x: T): pass", "3.11"),
        ("x = f'{y['a']}'", "3.11"),
        ("try:\n    pass\nexcept* E:\n    pass", "3.10"),
        ("if (x := 1): pass", "3.7"),
        ("t'{x}'", "3.13"),
    ];
    for (code, old) in newer {
        assert!(screen().check(Language::Python, code).is_ok(), "{code}");
        let python = PythonRules { version: Some(old.parse().unwrap()), ..PythonRules::default() };
        let old_screen = Analyzer::new(Rules { python, ..Rules::default() });
        let refused = old_screen.check(Language::Python, code);
        assert!(matches!(refused, Err(AnalysisError::Syntax(_))), "{code} in {old}: {refused:?}");
        assert!(old_screen.check(Language::Python, "x = 1").is_ok());
    }
}

#[test]
fn findings_are_shown_as_they_stand_in_the_code() {
    let report = screen().check(Language::Python, "if x:\n    __import__('os').system(\n'\u{1b}[2J')").unwrap();
    let shown: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "line 2, column 5: __import__('os'): imports os (import:os)",
            "line 2, column 5: __import__: uses __import__ (call:__import__)",
        ]
    );
}

/// Promise (Static analysis and audit log): Python in an encoding that can hide another program is not analysed, and
/// the error names the encoding.
#[test]
fn code_in_an_encoding_that_is_another_program_is_not_screened() {
    for (code, line, name) in [
        ("# coding: utf-7\n#+AAo-import os\n", 1, "utf-7"),
        ("#!/usr/bin/python3\n# -*- coding: unicode_escape -*-\n#\\nimport os", 2, "unicode_escape"),
        ("\u{FEFF}# coding: raw_unicode_escape\n", 1, "raw_unicode_escape"),
        // No syntax error, regardless of the parser's result.
        ("# coding: utf-16\n= =", 1, "utf-16"),
    ] {
        let refused = screen().check(Language::Python, code);
        assert_eq!(refused, Err(AnalysisError::Encoding { line, name: name.to_owned() }), "{code:?}");
    }
    assert_eq!(screen().check(Language::Python, "x = 1\ny = '\0'"), Err(AnalysisError::NullByte { line: 2 }));
    assert!(screen().check(Language::Python, "# coding: utf-8\nx = 'ö'").unwrap().findings.is_empty());
}

/// Prints a message on a machine without the interpreter.
///
/// Promise (Static analysis and audit log): Python reads the refused encodings as other programs.
#[test]
fn the_interpreter_reads_the_encodings_that_are_refused() {
    let folder = std::env::temp_dir().join(format!("cofferdam-screen-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("encoded.py");
    for code in ["# coding: utf-7\n#+AAo-print(1)\n", "# coding: unicode_escape\n#\\nprint(1)\n"] {
        std::fs::write(&file, code).unwrap();
        match std::process::Command::new("python3").arg("-I").arg(&file).output() {
            Ok(done) => assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "1", "{code}"),
            Err(error) => eprintln!("skipped: there is no python3 on this machine ({error})"),
        }
        assert!(matches!(screen().check(Language::Python, code), Err(AnalysisError::Encoding { .. })));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
