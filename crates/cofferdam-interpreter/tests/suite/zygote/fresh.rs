//! No two forks have anything random in common that is said to be their own.

use std::collections::BTreeSet;

use cofferdam_contract::collect;
use cofferdam_interpreter::{InterpreterConfig, ZygoteConfig};

use super::zygote;
use crate::support::{backend, block_on, code, printed, python_with, stdout};

const MANY: u32 = 8;

/// Runs a script in as many forks at once, and gives each one's lines.
async fn lines(config: InterpreterConfig, text: &str) -> Vec<Vec<String>> {
    let backend = backend();
    let config = ZygoteConfig { ready: 3, most_running: MANY, ..ZygoteConfig::of(config) };
    let zygote = zygote(&backend, &config).await;
    let mut running = Vec::new();
    for _ in 0..MANY {
        let request = code(&config.interpreter, "main.py", text).build().expect("valid");
        running.push(zygote.start(request).await.expect("it starts"));
    }
    let mut all = Vec::new();
    for handle in running {
        let completed = collect(handle).await.expect("it ends");
        assert!(completed.exit.success(), "{}", printed(&completed));
        all.push(stdout(&completed).lines().map(str::to_owned).collect());
    }
    zygote.close().await.expect("it closes");
    all
}

fn no_two_alike(names: &[&str], all: &[Vec<String>]) {
    for (index, name) in names.iter().enumerate() {
        let different: BTreeSet<&String> = all.iter().map(|lines| &lines[index]).collect();
        assert_eq!(different.len(), MANY as usize, "{name}: {different:?}");
    }
}

/// What a warm-up leaves behind that forks would have in common: every generator was used before.
const USED: &str = "import os, uuid, random, tempfile, secrets, ssl, multiprocessing, builtins\n\
    uuid.uuid1(); uuid.uuid4(); random.random(); secrets.token_hex(); ssl.RAND_bytes(8)\n\
    os.rmdir(tempfile.mkdtemp())\nbuiltins.own = random.Random(7)\nbuiltins.own.gauss(0, 1)";

#[test]
fn no_two_forks_share_randomness_or_names() {
    block_on(async {
        let config = InterpreterConfig { warm_up: USED.to_owned(), ..InterpreterConfig::python() };
        let text = "import os, uuid, random, tempfile, secrets, ssl, multiprocessing\n\
             print(os.urandom(8))\nprint(uuid.uuid4())\nprint(uuid.uuid1())\nprint(uuid.uuid1().clock_seq, uuid.getnode())\n\
             print(random.random())\nprint(secrets.token_hex())\nprint(ssl.RAND_bytes(8))\nprint(tempfile.mktemp())\n\
             print(tempfile.gettempdir())\nprint(os.path.basename(tempfile.mktemp()))\nprint(own.random())\nprint(own.gauss(0, 1))\n\
             print(bytes(multiprocessing.current_process().authkey))\nprint(random.SystemRandom().random())\nprint(__file__)";
        let names = [
            "urandom",
            "uuid4",
            "uuid1",
            "clock and node",
            "random",
            "secrets",
            "ssl",
            "mktemp",
            "gettempdir",
            "name",
            "an own generator",
            "its second half",
            "authkey",
            "SystemRandom",
            "the script's place",
        ];
        no_two_alike(&names, &lines(config, text).await);
    });
}

/// The control: what is said to be shared is.
#[test]
fn forks_share_hash_seed_and_addresses() {
    block_on(async {
        let all = lines(InterpreterConfig::python(), "print(hash('x'))\nimport os\nprint(id(os))").await;
        let different: BTreeSet<&Vec<String>> = all.iter().collect();
        assert_eq!(different.len(), 1, "{different:?}");
    });
}

#[test]
fn no_two_forks_share_the_random_state_of_numpy() {
    block_on(async {
        let test = "no_two_forks_share_the_random_state_of_numpy";
        let Some(config) = python_with(&backend(), test, "numpy").await else { return };
        let warm_up = "import numpy, builtins\nnumpy.random.seed(1); numpy.random.rand(); numpy.random.normal()\n\
                       builtins.own = numpy.random.default_rng(7)\nbuiltins.old = numpy.random.RandomState(7)";
        let config = InterpreterConfig { warm_up: warm_up.to_owned(), ..config.with_modules(["numpy"]) };
        let text = "import numpy\nprint(numpy.random.rand())\nprint(numpy.random.default_rng().random())\n\
                    print(numpy.random.normal())\nprint(own.random())\nprint(old.rand())";
        let names = ["rand", "default_rng", "normal", "an own generator", "an own old generator"];
        no_two_alike(&names, &lines(config, text).await);
    });
}

#[test]
fn what_only_the_caller_knows_of_is_seeded_by_the_callers_code() {
    block_on(async {
        let backend = backend();
        let warm_up = "import builtins\nbuiltins.token = 'of the zygote'";
        let interpreter = InterpreterConfig { warm_up: warm_up.to_owned(), ..InterpreterConfig::python() };
        let after_fork = "import builtins, os\nprint('not passed on')\nbuiltins.token = os.urandom(8).hex()".to_owned();
        let config = ZygoteConfig { after_fork, ..ZygoteConfig::of(interpreter) };
        let zygote = zygote(&backend, &config).await;
        let (one, other) =
            (super::told(&zygote, "print(token)", &[]).await, super::told(&zygote, "print(token)", &[]).await);
        assert!(one.len() == 17 && other.len() == 17 && one != other, "{one:?} {other:?}");
        zygote.close().await.expect("it closes");
    });
}
