//! Files that programs on the host execute or obey without being asked.
//!
//! The guest's version of such a file is a way out of the sandbox: an editor runs its tasks, a shell sources it when it
//! enters the directory, `git` runs its hooks. Changes of these are refused unless the caller allows them by name.
//! Files that are executed on request, such as `Makefile` or the code itself, are the subject of the review, as are files
//! that other machines execute, such as `.github/workflows`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::change::{Change, Node};
use crate::text;

/// Guarded names, in lower case, at any depth and with everything below them, and the reason. One `*` in a name stands
/// for any characters.
const GUARDED: &[(&str, &str)] = &[
    (".bash_aliases", SHELL),
    (".bash_login", SHELL),
    (".bash_logout", SHELL),
    (".bash_profile", SHELL),
    (".bashrc", SHELL),
    (".config/fish", SHELL),
    (".config/nushell", SHELL),
    (".cshrc", SHELL),
    (".inputrc", SHELL),
    (".kshrc", SHELL),
    (".login", SHELL),
    (".logout", SHELL),
    (".mkshrc", SHELL),
    (".oh-my-bash", SHELL),
    (".oh-my-zsh", SHELL),
    (".pam_environment", SHELL),
    (".profile", SHELL),
    (".shrc", SHELL),
    (".tcshrc", SHELL),
    (".xinitrc", SHELL),
    (".xprofile", SHELL),
    (".xserverrc", SHELL),
    (".xsession", SHELL),
    (".xsessionrc", SHELL),
    (".zlogin", SHELL),
    (".zlogout", SHELL),
    (".zprofile", SHELL),
    (".zshenv", SHELL),
    (".zshrc", SHELL),
    (".config/starship.toml", SHELL),
    (".config/tmux", SHELL),
    (".screenrc", SHELL),
    (".tmux.conf", SHELL),
    (".config/autostart", "the desktop starts it"),
    (".config/plasma-workspace", "the desktop starts it"),
    (".config/environment.d", "the session loads it"),
    (".config/systemd", "systemd starts it"),
    (".local/share/systemd", "systemd starts it"),
    (".local/bin", "it is in the search path of programs"),
    (".cache/cofferdam", OWN),
    (".config/cofferdam", OWN),
    (".local/share/cofferdam", OWN),
    (".local/state/cofferdam", OWN),
    (".envrc", "direnv runs it"),
    (".direnvrc", "direnv runs it"),
    (".config/direnv", "direnv runs it"),
    (".autoenv", "autoenv runs it"),
    (".autoenv.leave", "autoenv runs it"),
    (".autoenv.zsh", "autoenv runs it"),
    (".autoenv_leave.zsh", "autoenv runs it"),
    (".mise.toml", VERSIONS),
    (".mise.*.toml", VERSIONS),
    ("mise.toml", VERSIONS),
    ("mise.*.toml", VERSIONS),
    (".mise", VERSIONS),
    (".config/mise", VERSIONS),
    (".config/mise.toml", VERSIONS),
    (".config/mise.*.toml", VERSIONS),
    ("mise/config.toml", VERSIONS),
    ("mise/config.*.toml", VERSIONS),
    ("mise/conf.d", VERSIONS),
    (".rtx.toml", VERSIONS),
    (".rtx.*.toml", VERSIONS),
    (".tool-versions", VERSIONS),
    ("rust-toolchain", VERSIONS),
    ("rust-toolchain.toml", VERSIONS),
    (".ssh", "SSH obeys it"),
    (".rhosts", "servers for logins obey it"),
    (".shosts", "servers for logins obey it"),
    (".gnupg", "GnuPG obeys it"),
    (".forward", "the mail system runs it"),
    (".procmailrc", "the mail system runs it"),
    (".mailcap", "the mail system runs it"),
    (".aws", CLOUD),
    (".docker", CLOUD),
    (".kube", CLOUD),
    (".curlrc", TRANSFER),
    (".wgetrc", TRANSFER),
    ("*.code-workspace", EDITOR),
    ("*.sublime-project", EDITOR),
    (".config/emacs", EDITOR),
    (".config/helix", EDITOR),
    (".config/nvim", EDITOR),
    (".config/zed", EDITOR),
    (".devcontainer", EDITOR),
    (".devcontainer.json", EDITOR),
    (".dir-locals.el", EDITOR),
    (".dir-locals-2.el", EDITOR),
    (".emacs", EDITOR),
    (".emacs.d", EDITOR),
    (".exrc", EDITOR),
    (".fleet", EDITOR),
    (".helix", EDITOR),
    (".idea", EDITOR),
    (".local.vimrc", EDITOR),
    (".lvimrc", EDITOR),
    (".nvim.lua", EDITOR),
    (".nvimrc", EDITOR),
    (".vim", EDITOR),
    (".vimrc", EDITOR),
    (".vscode", EDITOR),
    (".zed", EDITOR),
    (".gdbinit", "debuggers run it"),
    (".gdbearlyinit", "debuggers run it"),
    (".lldbinit", "debuggers run it"),
    (".pdbrc", "debuggers run it"),
    (".rdbgrc", "debuggers run it"),
    (".byebugrc", "debuggers run it"),
    (".ghci", CONSOLE),
    (".iex.exs", CONSOLE),
    (".ipython", CONSOLE),
    (".irbrc", CONSOLE),
    (".jupyter", CONSOLE),
    ("jupyter_*_config.py", CONSOLE),
    ("ipython_config.py", CONSOLE),
    (".ocamlinit", CONSOLE),
    (".pryrc", CONSOLE),
    (".psqlrc", CONSOLE),
    (".rdata", CONSOLE),
    (".renviron", CONSOLE),
    (".rprofile", CONSOLE),
    (".sqliterc", CONSOLE),
    (".config/git", GIT),
    (".gitconfig", GIT),
    (".githooks", GIT),
    (".gitmodules", GIT),
    (".git-hooks", GIT),
    (".husky", GIT),
    (".huskyrc", GIT),
    (".huskyrc.*", GIT),
    (".lefthook", GIT),
    (".lefthook-local", GIT),
    (".lefthook.*", GIT),
    (".lefthook-local.*", GIT),
    ("lefthook.*", GIT),
    ("lefthook-local.*", GIT),
    (".config/lefthook.*", GIT),
    (".config/lefthook-local.*", GIT),
    (".lintstagedrc", GIT),
    (".lintstagedrc.*", GIT),
    ("lint-staged.config.*", GIT),
    (".overcommit.yml", GIT),
    (".pre-commit-config.yaml", GIT),
    ("captainhook.json", GIT),
    ("hk.pkl", GIT),
    ("prek.toml", GIT),
    (".hg/hgrc", "Mercurial obeys it"),
    (".hg/hgrc-not-shared", "Mercurial obeys it"),
    (".hg/sharedpath", "Mercurial obeys it"),
    (".sl/config", "Sapling obeys it"),
    (".jj/repo/config.toml", "Jujutsu obeys it"),
    (".bundle/config", PACKAGES),
    (".bunfig.toml", PACKAGES),
    ("bunfig.toml", PACKAGES),
    (".cargo/config", PACKAGES),
    (".cargo/config.toml", PACKAGES),
    (".condarc", PACKAGES),
    (".gemrc", PACKAGES),
    (".gradle/gradle.properties", PACKAGES),
    (".gradle/init.d", PACKAGES),
    (".gradle/init.gradle", PACKAGES),
    (".m2", PACKAGES),
    (".mvn", PACKAGES),
    (".npmrc", PACKAGES),
    (".pnpmfile.cjs", PACKAGES),
    (".pnpmfile.mjs", PACKAGES),
    (".yarnrc", PACKAGES),
    (".yarnrc.yml", PACKAGES),
    (".yarn/plugins", PACKAGES),
    (".yarn/releases", PACKAGES),
    (".pip", PACKAGES),
    (".config/pip", PACKAGES),
    (".pypirc", PACKAGES),
    (".config/uv", PACKAGES),
    ("uv.toml", PACKAGES),
    (".agent", AGENT),
    (".agents", AGENT),
    (".aider.conf.yml", AGENT),
    (".amazonq", AGENT),
    (".augment", AGENT),
    (".claude", AGENT),
    (".claude.json", AGENT),
    (".cline", AGENT),
    (".clinerules", AGENT),
    (".codex", AGENT),
    (".continue", AGENT),
    (".crush", AGENT),
    (".crush.json", AGENT),
    (".cursor", AGENT),
    (".cursorrules", AGENT),
    (".factory", AGENT),
    (".gemini", AGENT),
    (".github/agents", AGENT),
    (".github/copilot-instructions.md", AGENT),
    (".github/hooks", AGENT),
    (".github/instructions", AGENT),
    (".github/prompts", AGENT),
    (".goose", AGENT),
    (".goosehints", AGENT),
    (".junie", AGENT),
    (".kilocode", AGENT),
    (".kiro", AGENT),
    (".mcp.json", AGENT),
    (".opencode", AGENT),
    (".openhands", AGENT),
    (".qwen", AGENT),
    (".roo", AGENT),
    (".rules", AGENT),
    (".trae", AGENT),
    (".windsurf", AGENT),
    (".windsurfrules", AGENT),
    ("agent.md", AGENT),
    ("agents.md", AGENT),
    ("agents.override.md", AGENT),
    ("claude.local.md", AGENT),
    ("claude.md", AGENT),
    ("crush.json", AGENT),
    ("crush.md", AGENT),
    ("gemini.md", AGENT),
    ("opencode.json", AGENT),
    ("opencode.jsonc", AGENT),
    ("qwen.md", AGENT),
    ("warp.md", AGENT),
];
const SHELL: &str = "shells and sessions run it";
const OWN: &str = "Cofferdam has its settings, images or kept changes there";
const VERSIONS: &str = "it selects programs that shells run, or settings of shells";
const CLOUD: &str = "command-line clients run the programs that it names";
const TRANSFER: &str = "programs for transfers obey it";
const CONSOLE: &str = "interactive consoles run it";
const EDITOR: &str = "editors run its tasks or obey its settings";
pub(crate) const GIT: &str = "git and its hooks run it";
const PACKAGES: &str = "package managers obey it";
const AGENT: &str = "coding agents on the host obey it";

/// Names in a directory `.git` that the guest may change: they are data. Everything else there is guarded, such as
/// hooks, configuration, attributes and the commands of an interrupted rebase.
const GIT_DATA: &[&str] = &[
    "commit_editmsg",
    "fetch_head",
    "head",
    "index",
    "logs",
    "merge_head",
    "merge_mode",
    "merge_msg",
    "objects",
    "orig_head",
    "packed-refs",
    "refs",
    "shallow",
];

/// Returns the reason why a change needs the permission of the caller, or `None`. Letter case is ignored, since file
/// systems may ignore it.
#[must_use]
pub fn reason(change: &Change) -> Option<&'static str> {
    let parts: Vec<String> = change.path.iter().map(|name| folded(name.as_bytes())).collect();
    git(&parts, change).or_else(|| listed(&parts, change))
}

/// Returns true if a file at the path needs the permission of the caller.
#[cfg(feature = "sandbox")]
pub(crate) fn is_guarded(path: &Path) -> bool {
    reason(&Change::new(path.to_owned(), Some(Node::File { size: 0, mode: 0, offset: 0 }), None)).is_some()
}

/// Returns the reason if the path is a setting of a repository without a work tree, which git obeys, too.
pub(crate) fn bare_repository(path: &Path, exists: impl Fn(&Path) -> bool) -> Option<&'static str> {
    if path.iter().any(|name| folded(name.as_bytes()) == ".git") {
        return None;
    }
    path.ancestors().take(2).find_map(|ancestor| {
        let (parent, name) = (ancestor.parent()?, folded(ancestor.file_name()?.as_bytes()));
        let is_setting = matches!(name.as_str(), "config" | "hooks" | "head" | "commondir");
        let is_repository = || ["HEAD", "objects", "refs"].iter().all(|name| exists(&parent.join(name)));
        (is_setting && is_repository()).then_some(GIT)
    })
}

fn git(parts: &[String], change: &Change) -> Option<&'static str> {
    let at = parts.iter().position(|part| part == ".git")?;
    match parts.get(at + 1) {
        // A file or a link leads git to another repository.
        None if !matches!(change.node, Some(Node::Directory { .. })) => Some(GIT),
        None => None,
        // The places of objects of other repositories.
        Some(name) if name == "objects" && parts.get(at + 2).is_some_and(|name| name == "info") => Some(GIT),
        // A link in place of data leads to data elsewhere.
        Some(name) if GIT_DATA.contains(&name.as_str()) && !is_link(change) => None,
        Some(_) => Some(GIT),
    }
}

fn listed(parts: &[String], change: &Change) -> Option<&'static str> {
    let found = GUARDED.iter().find(|(pattern, _)| {
        let pattern: Vec<&str> = pattern.split('/').collect();
        (0..parts.len()).any(|from| {
            let rest = &parts[from..];
            let agrees = pattern.iter().zip(rest).all(|(pattern, part)| is_name(pattern, part));
            // A link above a guarded name puts other files there.
            agrees && (rest.len() >= pattern.len() || is_link(change))
        })
    });
    found.map(|(_, reason)| *reason)
}

fn is_link(change: &Change) -> bool {
    matches!(change.node, Some(Node::Symlink { .. }))
}

fn is_name(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
        None => pattern == name,
    }
}

/// Returns a name as a file system compares it that ignores letter case and invisible characters.
fn folded(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().filter(|c| !text::is_ignorable(*c)).flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> Change {
        Change::new(path.into(), Some(Node::File { size: 0, mode: 0o644, offset: 0 }), None)
    }

    fn link(path: &str) -> Change {
        Change::new(path.into(), Some(Node::Symlink { target: "x".into() }), None)
    }

    #[test]
    fn files_that_run_by_themselves_are_guarded() {
        for path in [
            ".git/hooks/pre-commit",
            ".git/config",
            ".GIT/Config",
            ".g\u{200c}it/config",
            ".git",
            "sub/.git/hooks/post-checkout",
            ".git/modules/x/config",
            ".git/rebase-merge/git-rebase-todo",
            ".git/objects/info/alternates",
            ".git/info/attributes",
            ".gitmodules",
            ".envrc",
            "a/b/.envrc",
            ".vscode/tasks.json",
            ".VSCode/Tasks.json",
            ".idea/x/y",
            ".husky/pre-commit",
            ".devcontainer/devcontainer.json",
            ".mcp.json",
            ".claude/settings.json",
            ".cursor/rules",
            ".codex/config.toml",
            ".pre-commit-config.yaml",
            ".bashrc",
            ".ba\u{17f}hrc",
            ".ssh/authorized_keys",
            ".npmrc",
            ".cargo/config.toml",
            "x.code-workspace",
            "CLAUDE.md",
            "AGENTS.md",
            ".mise.toml",
            ".mise.dev.toml",
            "mise.toml",
            "mise.local.toml",
            "a/mise/config.toml",
            "mise/config.local.toml",
            ".mise/config.toml",
            ".mise/conf.d/x.toml",
            ".config/mise/config.toml",
            ".config/mise.toml",
            ".tool-versions",
            "rust-toolchain.toml",
            "lefthook-local.yaml",
            ".lintstagedrc.json",
            ".helix/languages.toml",
            ".Rprofile",
            ".yarn/releases/yarn-4.cjs",
            "jupyter_server_config.py",
        ] {
            assert!(reason(&file(path)).is_some(), "{path}");
        }
        assert!(GUARDED.iter().all(|(pattern, _)| pattern.to_lowercase() == *pattern));
    }

    #[test]
    fn ordinary_files_are_not_guarded() {
        for path in [
            "src/main.rs",
            ".gitignore",
            ".github/workflows/ci.yml",
            ".git/objects/aa/bb",
            ".git/refs/heads/main",
            ".git/index",
            ".git/HEAD",
            ".cargo/audit.toml",
            ".config/other",
            "git/config",
            "mise/other.toml",
            "misery.toml",
            ".env",
            ".python-version",
            ".yarn/cache/x.zip",
            "package.json",
            "hooks/x",
            "README.md",
        ] {
            assert_eq!(reason(&file(path)), None, "{path}");
        }
        let directory = Change::new(".git".into(), Some(Node::Directory { mode: 0o755 }), None);
        assert_eq!(reason(&directory), None);
    }

    #[test]
    fn links_above_guarded_names_are_guarded() {
        for path in [".cargo", ".config", ".git", ".git/refs", "a/.vscode"] {
            assert!(reason(&link(path)).is_some(), "{path}");
        }
        assert_eq!(reason(&link("src")), None);
    }

    #[test]
    fn repositories_without_a_work_tree_are_found() {
        let exists = |path: &Path| path.starts_with("sub");
        for path in ["sub/config", "sub/hooks", "sub/hooks/pre-commit"] {
            assert!(bare_repository(Path::new(path), exists).is_some(), "{path}");
        }
        for path in ["config", "sub/x", "other/config"] {
            assert_eq!(bare_repository(Path::new(path), exists), None, "{path}");
        }
    }
}
