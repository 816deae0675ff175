//! Cases: environment, working directory, and the forms of a command.

use std::collections::BTreeMap;

use cofferdam_contract::{Command, ExecRequest, ExecRequestBuilder, SandboxPath, Script};

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Verdict, check, check_eq, path, text, write_small};

/// Variables that every guest has by default.
const BASE: [&str; 3] = ["PATH", "HOME", "LANG"];
/// Variables that shells add.
const OF_THE_SHELL: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

async fn environment(cx: &Context, request: ExecRequestBuilder) -> Outcome<BTreeMap<String, String>> {
    let done = cx.run_request(request).await?;
    check!(done.exit.success(), "cannot print the environment: {:?}", done.exit);
    let output = text(&done.stdout);
    let variables = output.split('\0').filter_map(|variable| variable.split_once('='));
    let variables = variables.filter(|(name, _)| !OF_THE_SHELL.contains(name));
    Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

pub(super) async fn is_a_delta(cx: Context) -> Verdict {
    let plain = environment(&cx, cx.request(&P::PrintEnvironment)?).await?;
    let names: Vec<&str> = plain.keys().map(String::as_str).collect();
    let mut expected = BASE.to_vec();
    expected.sort_unstable();
    check_eq!(names, expected, "variables without a delta");
    let value = "a b\n'=\"$x\u{e9}";
    let request = cx.request(&P::PrintEnvironment)?.env("COFFERDAM_CASE", value).env("EMPTY", "");
    let mut changed = environment(&cx, request).await?;
    check_eq!(changed.remove("COFFERDAM_CASE").as_deref(), Some(value), "the variable that was set");
    check_eq!(changed.remove("EMPTY").as_deref(), Some(""), "the empty variable");
    check_eq!(changed, plain, "the other variables");
    Ok(())
}

pub(super) async fn unset_and_replace(cx: Context) -> Verdict {
    let request =
        cx.request(&P::PrintEnvironment)?.unset_env("LANG").unset_env("NOT_THERE").env("HOME", "/workspace/x");
    let variables = environment(&cx, request).await?;
    check!(!variables.contains_key("LANG"), "an unset variable is present: {variables:?}");
    check_eq!(variables.get("HOME").map(String::as_str), Some("/workspace/x"), "the variable that was replaced");
    check!(variables.contains_key("PATH"), "a variable outside of the delta is missing: {variables:?}");
    Ok(())
}

pub(super) async fn working_dir(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "sub/dir/file", "x").await?;
    for (directory, inside) in [("sub/dir", "/workspace/sub/dir\n"), ("", "/workspace\n")] {
        let sandbox = if directory.is_empty() { cx.sandbox().await? } else { sandbox.clone() };
        let request = cx.request(&P::PrintWorkingDir)?.working_dir(path(directory)?).build()?;
        check_eq!(text(&sandbox.exec(request).await?.stdout), inside, "working directory");
    }
    let request = cx.request(&P::PrintWorkingDir)?.working_dir(SandboxPath::new("not/there")?).build()?;
    let missing = cx.sandbox().await?.start(request).await;
    check!(missing.is_err(), "a program was started in a directory that does not exist");
    Ok(())
}

pub(super) async fn shell_and_script(cx: Context) -> Verdict {
    let done = cx.run_request(ExecRequest::shell("printf '%s-' a \"b c\"; exit 3")).await?;
    check_eq!(text(&done.stdout), "a-b c-", "output of a shell line");
    check_eq!(done.exit.code, 3, "code of a shell line");
    let script = Script {
        interpreter: vec!["sh".to_owned(), "-e".to_owned()],
        name: "main.sh".to_owned(),
        contents: "echo \"${0##*/}\"; echo \"$1\"; echo $#; set +e; echo >>\"$0\" && echo changed; exit 4\n".into(),
        args: vec!["one 'two'".to_owned(), "--three".to_owned()],
    };
    let done = cx.run_request(ExecRequest::builder(Command::Script(script))).await?;
    check_eq!(
        text(&done.stdout),
        "main.sh\none 'two'\n2\n",
        "output of a script that must not be able to change itself"
    );
    check_eq!(done.exit.code, 4, "code of a script");
    Ok(())
}
