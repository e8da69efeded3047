;; Answers with the object behind the first `"answer":` in the input, or else in the state. Strings in it hold no
;; braces. Made for tests: what the program is to say can be put into what it is given.
(module
  (memory (export "memory") 64)
  (data (i32.const 16) "\22answer\22:")
  (global $free (mut i32) (i32.const 1024))

  (func (export "saga_alloc") (param $bytes i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $free))
    (global.set $free (i32.add (global.get $free) (local.get $bytes)))
    (local.get $at))

  ;; Whether the nine bytes of the mark are at `at`.
  (func $marked (param $at i32) (result i32)
    (local $i i32)
    (loop $next
      (if (i32.ne (i32.load8_u (i32.add (i32.const 16) (local.get $i)))
                  (i32.load8_u (i32.add (local.get $at) (local.get $i))))
        (then (return (i32.const 0))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.const 9))))
    (i32.const 1))

  (func $find (param $at i32) (param $bytes i32) (result i64)
    (local $end i32) (local $begin i32) (local $depth i32) (local $byte i32)
    (local.set $end (i32.add (local.get $at) (local.get $bytes)))
    (block $found
      (loop $next
        (if (i32.ge_u (i32.add (local.get $at) (i32.const 9)) (local.get $end))
          (then (return (i64.const 0))))
        (br_if $found (call $marked (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.set $at (i32.add (local.get $at) (i32.const 9)))
    (local.set $begin (local.get $at))
    (loop $next
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (return (i64.const 0))))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.eq (local.get $byte) (i32.const 0x7b))
        (then (local.set $depth (i32.add (local.get $depth) (i32.const 1)))))
      (if (i32.eq (local.get $byte) (i32.const 0x7d))
        (then (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (local.get $depth)))
    (i64.or
      (i64.shl (i64.extend_i32_u (local.get $begin)) (i64.const 32))
      (i64.extend_i32_u (i32.sub (local.get $at) (local.get $begin)))))

  (func (export "saga_transition") (param $state i32) (param $state_bytes i32) (param $input i32) (param $input_bytes i32) (result i64)
    (local $found i64)
    (local.set $found (call $find (local.get $input) (local.get $input_bytes)))
    (if (i64.eqz (local.get $found))
      (then (local.set $found (call $find (local.get $state) (local.get $state_bytes)))))
    (local.get $found)))
