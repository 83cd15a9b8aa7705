"builtin.module"() ({
  "stable_mosaic.func.func"() ({
    %0 = "stable_mosaic.arith.constant"() {value = #arith.x<>} : () -> i32
