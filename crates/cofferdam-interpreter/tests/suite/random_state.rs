//! Tests that no two prepared interpreters share random state.

use std::collections::BTreeSet;

use cofferdam_interpreter::InterpreterConfig;

use crate::support::{backend, block_on, code, has, printed, python, python_with, stdout, warm};

const MANY: usize = 8;

/// Runs a script in several interpreters that are all ready before the first run. Returns the lines of each.
async fn lines(config: &InterpreterConfig, request: cofferdam_contract::ExecRequest) -> Vec<Vec<String>> {
    let backend = backend();
    let mut waiting = Vec::new();
    for _ in 0..MANY {
        waiting.push(warm(&backend, config).await);
    }
    let mut all = Vec::new();
    for interpreter in waiting {
        let completed = interpreter.run(request.clone()).await.expect("it runs");
        assert!(completed.exit.success(), "{}", printed(&completed));
        all.push(stdout(&completed).lines().map(str::to_owned).collect());
    }
    all
}

fn no_two_alike(names: &[&str], all: &[Vec<String>]) {
    for (index, name) in names.iter().enumerate() {
        let different: BTreeSet<&String> = all.iter().map(|lines| &lines[index]).collect();
        assert_eq!(different.len(), MANY, "{name}: {different:?}");
    }
}

/// Promise (Warm interpreters): No two warm Pythons share random state, hash seed or addresses.
#[test]
fn no_two_pythons_share_randomness_or_addresses() {
    block_on(async {
        let config = InterpreterConfig::python().with_modules(["random", "tempfile", "uuid", "ssl", "secrets"]);
        let request = python(
            "import os, uuid, random, tempfile, secrets, ssl\n\
             print(os.urandom(8))\nprint(uuid.uuid4())\nprint(random.random())\nprint(hash('x'))\n\
             print(tempfile.mktemp())\nprint(id(object()))\nprint(secrets.token_hex())\nprint(ssl.RAND_bytes(8))",
        );
        let names = ["urandom", "uuid4", "random", "hash", "mktemp", "id", "secrets", "ssl"];
        no_two_alike(&names, &lines(&config, request).await);
    });
}

/// Promise (Warm interpreters): No two warm Pythons share the random state of NumPy.
#[test]
fn no_two_pythons_share_the_random_state_of_numpy() {
    block_on(async {
        let test = "no_two_pythons_share_the_random_state_of_numpy";
        let Some(config) = python_with(&backend(), test, "numpy").await else { return };
        let config = config.with_modules(["numpy", "numpy.random"]);
        let text = "import numpy\nprint(numpy.random.random())\nprint(numpy.random.default_rng().random())";
        let request = code(&config, "main.py", text).build().expect("valid");
        no_two_alike(&["random", "default_rng"], &lines(&config, request).await);
    });
}

/// Promise (Warm interpreters): No two warm Nodes share random state.
#[test]
fn no_two_nodes_share_randomness() {
    block_on(async {
        let config = InterpreterConfig::node().with_modules(["crypto"]);
        if !has(&backend(), "no_two_nodes_share_randomness", &config).await {
            return;
        }
        let text = "const c = require('crypto'); console.log(Math.random()); console.log(c.randomUUID()); console.log(c.randomInt(2 ** 40))";
        let request = code(&config, "main.js", text).build().expect("valid");
        no_two_alike(&["Math.random", "randomUUID", "randomInt"], &lines(&config, request).await);
    });
}
