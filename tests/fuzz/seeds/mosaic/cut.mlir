"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: i32, %arg1: memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>):
    %7 = "stable_mosaic.arith.constant"() {value = dense<0xFF800000> : vector<8x128xf32>} : () -> vector<8x128xf32>
    %8 = "stable_mosaic.arith.constant"() {value = -2.38197633E+38 : f32} : () -> f32
    %9 = "stable_mosaic.arith.constant"() {value = true} : () -> i1
    %10 = "stable_mosaic.arith.constant"() {value = dense<false> : vector<8x128xi1>} : () -> vector<8x128xi1>
    %11:2 = "stable_mosaic.scf.if"(%9) ({
      "stable_mosaic.scf.yield"(%7, %arg0) : (vector<8x128xf32>, i32) -> ()
    }, {
      %12 = "stable_mosaic.tpu.dynamic_rotate"(