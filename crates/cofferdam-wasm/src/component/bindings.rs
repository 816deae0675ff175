//! Rust bindings of the WASI 0.2 interfaces, generated from `wit/`.
#![allow(missing_docs, reason = "generated")]

wasmtime::component::bindgen!({
    path: "wit",
    world: "wasi:cli/command",
    imports: { default: trappable },
    trappable_error_type: {
        "wasi:io/streams.stream-error" => crate::component::error::StreamFail,
        "wasi:filesystem/types.error-code" => crate::component::error::FileFail,
        "wasi:sockets/network.error-code" => crate::component::error::SocketFail,
    },
    with: {
        "wasi:io/error.error": crate::component::resources::IoError,
        "wasi:io/poll.pollable": crate::component::resources::Pollable,
        "wasi:io/streams.input-stream": crate::component::resources::InputStream,
        "wasi:io/streams.output-stream": crate::component::resources::OutputStream,
        "wasi:filesystem/types.descriptor": crate::component::resources::Opened,
        "wasi:filesystem/types.directory-entry-stream": crate::component::resources::Entries,
        "wasi:cli/terminal-input.terminal-input": crate::component::resources::Nothing,
        "wasi:cli/terminal-output.terminal-output": crate::component::resources::Nothing,
        "wasi:sockets/network.network": crate::component::resources::Network,
        "wasi:sockets/ip-name-lookup.resolve-address-stream": crate::component::resources::Addresses,
        "wasi:sockets/tcp.tcp-socket": crate::component::resources::TcpSocket,
        "wasi:sockets/udp.udp-socket": crate::component::resources::Nothing,
        "wasi:sockets/udp.incoming-datagram-stream": crate::component::resources::Nothing,
        "wasi:sockets/udp.outgoing-datagram-stream": crate::component::resources::Nothing,
    },
});

pub(crate) use wasi::*;
