;; The functions that components of tests can call, with a handwritten canonical ABI. Results of calls are at 256, and the
;; host's allocations start at 0x10000. An error of a file call is its number plus 100.
(import "wasi:cli/stdout@0.2.12" "get-stdout" (func $get_stdout (result i32)))
(import "wasi:cli/stdin@0.2.12" "get-stdin" (func $get_stdin (result i32)))
(import "wasi:cli/exit@0.2.12" "exit" (func $exit_status (param i32)))
(import "wasi:cli/exit@0.2.12" "exit-with-code" (func $exit (param i32)))
(import "wasi:cli/terminal-stdout@0.2.12" "get-terminal-stdout" (func $terminal (param i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.blocking-write-and-flush" (func $write (param i32 i32 i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.write-zeroes" (func $write_zeroes (param i32 i64 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.splice" (func $splice (param i32 i32 i64 i32)))
(import "wasi:io/streams@0.2.12" "[method]input-stream.read" (func $read (param i32 i64 i32)))
(import "wasi:io/streams@0.2.12" "[method]input-stream.blocking-read" (func $blocking_read (param i32 i64 i32)))
(import "wasi:io/streams@0.2.12" "[method]input-stream.subscribe" (func $subscribe (param i32) (result i32)))
(import "wasi:io/streams@0.2.12" "[resource-drop]input-stream" (func $drop_input (param i32)))
(import "wasi:io/streams@0.2.12" "[resource-drop]output-stream" (func $drop_output (param i32)))
(import "wasi:io/poll@0.2.12" "poll" (func $poll (param i32 i32 i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.block" (func $block (param i32)))
(import "wasi:io/poll@0.2.12" "[method]pollable.ready" (func $ready (param i32) (result i32)))
(import "wasi:clocks/monotonic-clock@0.2.12" "now" (func $now (result i64)))
(import "wasi:clocks/monotonic-clock@0.2.12" "subscribe-duration" (func $after (param i64) (result i32)))
(import "wasi:clocks/wall-clock@0.2.12" "now" (func $date (param i32)))
(import "wasi:random/random@0.2.12" "get-random-bytes" (func $random (param i64 i32)))
(import "wasi:random/insecure-seed@0.2.12" "insecure-seed" (func $seed (param i32)))
(import "wasi:filesystem/preopens@0.2.12" "get-directories" (func $directories (param i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.open-at"
  (func $open_at (param i32 i32 i32 i32 i32 i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.create-directory-at"
  (func $create_directory_at (param i32 i32 i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.symlink-at"
  (func $symlink_at (param i32 i32 i32 i32 i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.rename-at"
  (func $rename_at (param i32 i32 i32 i32 i32 i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.link-at"
  (func $link_at (param i32 i32 i32 i32 i32 i32 i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.unlink-file-at"
  (func $unlink_at (param i32 i32 i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.set-size" (func $set_size (param i32 i64 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.read" (func $read_at (param i32 i64 i64 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.write" (func $write_at (param i32 i32 i32 i64 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.write-via-stream"
  (func $write_via_stream (param i32 i64 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.read-via-stream" (func $read_via_stream (param i32 i64 i32)))
(import "wasi:filesystem/types@0.2.12" "[method]descriptor.read-directory" (func $read_directory (param i32 i32)))
(import "wasi:filesystem/types@0.2.12" "[resource-drop]descriptor" (func $drop_descriptor (param i32)))
(import "wasi:sockets/tcp-create-socket@0.2.12" "create-tcp-socket" (func $tcp (param i32 i32)))
(import "wasi:sockets/udp-create-socket@0.2.12" "create-udp-socket" (func $udp (param i32 i32)))
(import "wasi:sockets/instance-network@0.2.12" "instance-network" (func $network (result i32)))
(import "wasi:sockets/ip-name-lookup@0.2.12" "resolve-addresses" (func $resolve (param i32 i32 i32 i32)))
(import "wasi:sockets/ip-name-lookup@0.2.12" "[method]resolve-address-stream.resolve-next-address"
  (func $next_address (param i32 i32)))
(import "wasi:sockets/ip-name-lookup@0.2.12" "[method]resolve-address-stream.subscribe"
  (func $subscribe_lookup (param i32) (result i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.start-connect"
  (func $start_connect (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.finish-connect" (func $finish_connect (param i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.subscribe" (func $subscribe_tcp (param i32) (result i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.shutdown" (func $shutdown (param i32 i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.start-listen" (func $start_listen (param i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.start-bind"
  (func $start_bind (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.set-keep-alive-idle-time"
  (func $set_idle_time (param i32 i64 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.set-send-buffer-size"
  (func $set_send_buffer (param i32 i64 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.send-buffer-size" (func $send_buffer (param i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[method]tcp-socket.remote-address" (func $remote_address (param i32 i32)))
(import "wasi:sockets/tcp@0.2.12" "[resource-drop]tcp-socket" (func $drop_tcp (param i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.check-write" (func $check_write (param i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.write" (func $write_some (param i32 i32 i32 i32)))
(import "wasi:io/streams@0.2.12" "[method]output-stream.subscribe" (func $subscribe_output (param i32) (result i32)))

(memory (export "memory") 4)
(global $free (mut i32) (i32.const 0x10000))
;; The address that `realloc` returns if it is not 0. With 1 it also calls the host, with 2 it loops forever.
(global $lie (mut i32) (i32.const 0))

;; Allocates memory that is never freed, and grows the memory if necessary.
(func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
  (local $at i32)
  (if (i32.eq (global.get $lie) (i32.const 1)) (then (drop (call $get_stdin))))
  (if (i32.eq (global.get $lie) (i32.const 2)) (then (loop $ever (br $ever))))
  (if (global.get $lie) (then (return (global.get $lie))))
  (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
  (global.set $free (i32.add (local.get $at) (local.get $size)))
  (block $fits
    (br_if $fits (i32.le_u (global.get $free) (i32.mul (memory.size) (i32.const 65536))))
    (drop (memory.grow (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1)))))
  (local.get $at))

(func $print (param $at i32) (param $length i32)
  (call $write (call $get_stdout) (local.get $at) (local.get $length) (i32.const 128)))

;; Returns the preopened directory of this number.
(func $directory (param $number i32) (result i32)
  (call $directories (i32.const 256))
  (i32.load (i32.add (i32.load (i32.const 256)) (i32.mul (local.get $number) (i32.const 12)))))

;; Returns 0, or the error that is stored at this offset from the result's tag.
(func $outcome (param $behind i32) (result i32)
  (if (result i32) (i32.load8_u (i32.const 256))
    (then (i32.add (i32.const 100) (i32.load8_u (i32.add (i32.const 256) (local.get $behind)))))
    (else (i32.const 0))))

;; Opens a file. Returns the error or 0. The descriptor is at 260.
(func $open (param $directory i32) (param $at i32) (param $length i32) (param $how i32) (param $flags i32) (result i32)
  (call $open_at (local.get $directory) (i32.const 1) (local.get $at) (local.get $length) (local.get $how)
    (local.get $flags) (i32.const 256))
  (call $outcome (i32.const 4)))

;; Exits with the error, unless it is 0.
(func $check (param $error i32)
  (if (local.get $error) (then (call $exit (local.get $error)))))
