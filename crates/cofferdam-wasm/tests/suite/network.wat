;; Network functions for components of tests. Errors are their number plus 100, as in files.
(global $socket (mut i32) (i32.const 0))
(global $in (mut i32) (i32.const 0))
(global $out (mut i32) (i32.const 0))

;; Finishes a started operation, and waits for it.
(func $connected (result i32) (local $error i32)
  (block $done (loop $again
    (call $finish_connect (global.get $socket) (i32.const 256))
    (local.set $error (call $outcome (i32.const 4)))
    (br_if $done (i32.ne (local.get $error) (i32.const 108)))
    (call $block (call $subscribe_tcp (global.get $socket)))
    (br $again)))
  (global.set $in (i32.load (i32.const 260)))
  (global.set $out (i32.load (i32.const 264)))
  (local.get $error))

(func $connect4 (param $port i32) (param $a i32) (param $b i32) (param $c i32) (param $d i32) (result i32)
  (local $error i32)
  (call $tcp (i32.const 0) (i32.const 256))
  (if (local.tee $error (call $outcome (i32.const 4))) (then (return (local.get $error))))
  (global.set $socket (i32.load (i32.const 260)))
  (call $start_connect (global.get $socket) (call $network) (i32.const 0)
    (local.get $port) (local.get $a) (local.get $b) (local.get $c) (local.get $d)
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 256))
  (if (local.tee $error (call $outcome (i32.const 1))) (then (return (local.get $error))))
  (call $connected))

;; The first six parts, which are equal, and the last two.
(func $connect6 (param $port i32) (param $zero i32) (param $f i32) (param $g i32) (param $h i32) (result i32)
  (local $error i32)
  (call $tcp (i32.const 1) (i32.const 256))
  (if (local.tee $error (call $outcome (i32.const 4))) (then (return (local.get $error))))
  (global.set $socket (i32.load (i32.const 260)))
  (call $start_connect (global.get $socket) (call $network) (i32.const 1)
    (local.get $port) (i32.const 0) (local.get $zero) (local.get $zero) (local.get $zero) (local.get $zero)
    (local.get $zero) (local.get $f) (local.get $g) (local.get $h) (i32.const 0) (i32.const 256))
  (if (local.tee $error (call $outcome (i32.const 1))) (then (return (local.get $error))))
  (call $connected))

;; Looks up a name, and connects to the first IPv4 address. Returns 99 if there is none.
(func $connect_to (param $at i32) (param $length i32) (param $port i32) (result i32)
  (local $error i32) (local $stream i32)
  (call $resolve (call $network) (local.get $at) (local.get $length) (i32.const 256))
  (if (local.tee $error (call $outcome (i32.const 4))) (then (return (local.get $error))))
  (local.set $stream (i32.load (i32.const 260)))
  (block $found (loop $again
    (call $next_address (local.get $stream) (i32.const 256))
    (local.set $error (call $outcome (i32.const 2)))
    (if (i32.eq (local.get $error) (i32.const 108)) (then
      (call $block (call $subscribe_lookup (local.get $stream)))
      (br $again)))
    (if (local.get $error) (then (return (local.get $error))))
    (if (i32.eqz (i32.load8_u (i32.const 258))) (then (return (i32.const 99))))
    (br_if $again (i32.load8_u (i32.const 260)))))
  (call $connect4 (local.get $port) (i32.load8_u (i32.const 262)) (i32.load8_u (i32.const 263))
    (i32.load8_u (i32.const 264)) (i32.load8_u (i32.const 265))))

(func $say (param $at i32) (param $length i32)
  (call $write (global.get $out) (local.get $at) (local.get $length) (i32.const 256))
  (call $check (call $outcome (i32.const 4))))

;; Prints the received data until the end. Returns 1 if the stream was closed, 0 after an error.
(func $print_all (result i32)
  (loop $more
    (global.set $free (i32.const 0x10000))
    (call $blocking_read (global.get $in) (i64.const 65536) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then (return (i32.load8_u (i32.const 260)))))
    (call $print (i32.load (i32.const 260)) (i32.load (i32.const 264)))
    (br $more))
  unreachable)
