//! A fork has no memory and no descriptor of what another one was given or made. The forks print all of their memory, and
//! the search is done out here, so that whoever is searched does not hold what is looked for.

use cofferdam_contract::{ByteSize, Stdin};
use cofferdam_interpreter::{InterpreterConfig, ZygoteConfig};

use super::{run, started, zygote};
use crate::support::{backend, block_on, code_with_args, printed, stdout};

/// Prints every byte of the process that can be read.
const DUMP: &str = "import os\nwith open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:\n    \
    for line in maps.readlines():\n        place, access = line.split()[:2]\n        \
    if access[0] != 'r' or '[v' in line:\n            continue\n        \
    begin, end = (int(part, 16) for part in place.split('-'))\n        \
    try:\n            memory.seek(begin)\n            os.write(1, b'')\n            data = memory.read(end - begin)\n        \
    except OSError:\n            continue\n        \
    while data:\n            data = data[os.write(1, data):]\n";
const FILES: &str = "import os\nprint(sorted(os.listdir('/proc/self/fd')))\n\
    print([os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in range(3)])";

fn count(memory: &[u8], secret: &str) -> usize {
    // Text may be stored wide, too.
    let wide: Vec<u8> = secret.bytes().flat_map(|byte| [byte, 0]).collect();
    [secret.as_bytes(), &wide]
        .iter()
        .map(|needle| memory.windows(needle.len()).filter(|window| window == needle).count())
        .sum()
}

#[test]
fn no_fork_has_memory_of_what_another_one_was_given_or_printed() {
    block_on(async {
        let backend = backend();
        let interpreter =
            InterpreterConfig { most_output: ByteSize::from_mebibytes(200), ..InterpreterConfig::python() };
        let config = ZygoteConfig { ready: 2, ..ZygoteConfig::of(interpreter) };
        let zygote = zygote(&backend, &config).await;
        let secret =
            format!("sEcReT-{:016x}-sEcReT", u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let request = |text: &str, args: &[&str]| {
            code_with_args(&config.interpreter, "main.py", text, args).max_output(ByteSize::from_mebibytes(200))
        };
        let text = format!("# {secret}\nimport sys, os\nx = sys.stdin.read() * 100\nprint(x, os.environ['S'])\n");
        let given =
            |text: &str| request(text, &[&secret]).env("S", secret.as_str()).stdin(Stdin::Bytes(secret.clone().into()));
        let first = run(&zygote, given(&text).build().expect("valid")).await.expect("it runs");
        assert_eq!(count(&first.stdout, &secret), 101, "{}", printed(&first));
        // One that has it still runs while the others are searched.
        let still = given(&format!("{text}\nimport time\ntime.sleep(100)")).build().expect("valid");
        let still = zygote.start(still).await.expect("it starts");
        // Those that were ready before the secret came, and those that were forked since.
        for round in 0..5 {
            let later = run(&zygote, request(DUMP, &[]).build().expect("valid")).await.expect("it runs");
            assert!(later.exit.success() && !later.exit.truncated, "{:?}", later.exit);
            assert!(later.stdout.len() > 5_000_000, "only {} bytes were searched", later.stdout.len());
            assert_eq!(count(&later.stdout, &secret), 0, "round {round}");
        }
        // The control: who was given it has it.
        let own = run(&zygote, given(DUMP).build().expect("valid")).await.expect("it runs");
        assert!(count(&own.stdout, &secret) > 0);
        still.close().await.expect("it ends");
        zygote.close().await.expect("it closes");
    });
}

#[test]
fn a_fork_has_no_descriptor_but_its_own_three() {
    block_on(async {
        let backend = backend();
        let zygote = zygote(&backend, &ZygoteConfig::python()).await;
        let (other, _) = started(&zygote, "print(1)\nimport time\ntime.sleep(100)").await;
        for _ in 0..4 {
            let completed = run(&zygote, crate::support::python(FILES)).await.expect("it runs");
            // The fourth is the list itself.
            let expected = "['0', '1', '2', '3']\n['pipe', 'pipe', 'pipe']\n";
            assert_eq!(stdout(&completed), expected, "{}", printed(&completed));
        }
        other.close().await.expect("it ends");
        zygote.close().await.expect("it closes");
    });
}
