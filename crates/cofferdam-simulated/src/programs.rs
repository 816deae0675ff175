//! The conformance suite's programs for simulated guests.

use cofferdam_conformance::{GuestProgram, Programs, READY};
use cofferdam_contract::{ExecRequest, ExecRequestBuilder, OutputStream, WORKSPACE_PATH};

use crate::{OnTerm, Program, Step};

/// The suite's programs as steps. A few need a real kernel or network and are not available.
#[derive(Debug, Clone, Copy, Default)]
pub struct SimulatedPrograms;

impl Programs for SimulatedPrograms {
    fn request(&self, program: &GuestProgram) -> Option<ExecRequestBuilder> {
        match program {
            GuestProgram::Missing => Some(ExecRequest::argv(["/nowhere/no-such-program"])),
            GuestProgram::RunFile { path } => Some(ExecRequest::argv([format!("{WORKSPACE_PATH}/{path}")])),
            other => steps(other).map(|steps| Program(steps).request()),
        }
    }
}

fn print(text: impl Into<String>) -> Step {
    Step::Print { stream: OutputStream::Stdout, text: text.into() }
}

fn complain(text: impl Into<String>) -> Step {
    Step::Print { stream: OutputStream::Stderr, text: text.into() }
}

fn ready() -> Step {
    print(format!("{READY}\n"))
}

fn steps(program: &GuestProgram) -> Option<Vec<Step>> {
    use GuestProgram as P;
    Some(match program.clone() {
        P::Succeed => vec![],
        P::Exit(code) => vec![Step::Exit(code.into())],
        P::KillSelf(signal) => vec![Step::Die(signal.into())],
        P::Print { stdout, stderr } => vec![print(stdout), complain(stderr)],
        P::PrintRepeated { line, total } => vec![Step::PrintRepeated { text: line + "\n", total }],
        P::PrintNumbered { count } => {
            (1..=count).flat_map(|n| [print(format!("o{n}\n")), complain(format!("e{n}\n"))]).collect()
        }
        P::PrintAllBytes => vec![Step::PrintBytes((0..=255).collect())],
        P::PrintAroundInput { before, after } => vec![print(before), Step::ReadLine, print(after)],
        P::CopyInput { code } => vec![Step::CopyInput, Step::Exit(code.into())],
        P::CountInput => vec![Step::CountInput],
        P::PrintEnvironment => vec![Step::PrintEnvironment],
        P::PrintWorkingDir => vec![Step::PrintWorkingDirectory],
        P::SleepForever => vec![ready(), Step::SleepForever],
        P::IgnoreTermAndSleep => vec![Step::OnTerm(OnTerm::Ignore), ready(), Step::SleepForever],
        P::ExitOnTerm { code } => vec![Step::OnTerm(OnTerm::Exit(code.into())), ready(), Step::SleepForever],
        P::CloseOutputAndSleep => vec![ready(), Step::CloseOutput, Step::SleepForever],
        P::DaemoniseAndSleep { heartbeat } => {
            let beat = vec![Step::AppendFile { path: heartbeat, contents: "x".into() }, Step::Sleep { millis: 50 }];
            vec![Step::Daemon(vec![Step::Repeat { times: None, steps: beat }]), ready(), Step::SleepForever]
        }
        P::WriteFile { path, contents } => vec![Step::WriteFile { path, contents }],
        P::ReadFile { path } => vec![Step::ReadFile { path }],
        P::MakeDirectory { path } => vec![Step::MakeDirectory { path }],
        P::MakeSymlink { path, target } => vec![Step::MakeSymlink { path, target, replace: false }],
        P::MakeFifo { path } => vec![Step::MakeFifo { path }],
        P::MakeFiles { path, count } => (0..count)
            .map(|number| Step::WriteFile { path: format!("{path}/f{number}"), contents: String::new() })
            .collect(),
        P::SwapSymlinkForever { path, inside, outside } => {
            let point = |target: &str| Step::MakeSymlink { path: path.clone(), target: target.into(), replace: true };
            let swaps = vec![point(&outside), point(&inside)];
            // The sleep lets a paused clock advance.
            let round = vec![Step::Repeat { times: Some(50), steps: swaps }, Step::Sleep { millis: 1 }];
            vec![point(&inside), ready(), Step::Repeat { times: None, steps: round }]
        }
        P::AllocateMemory { bytes, .. } => vec![Step::Allocate { bytes }, print("allocated\n")],
        P::AllocateMemoryInChild { bytes, code } => {
            vec![Step::AllocateInChild { bytes }, Step::Exit(code.into())]
        }
        P::SpinCpu { processes } => vec![Step::Spin { processes }],
        P::Fork { count } => vec![Step::Fork { count }],
        P::FillDisk { path, bytes } => vec![Step::FillDisk { path, bytes }],
        P::WatchTerminal => vec![Step::WatchTerminal],
        P::CountProcesses => vec![Step::CountProcesses],
        P::Sequence(programs) => {
            programs.iter().map(steps).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect()
        }
        _ => return None,
    })
}
