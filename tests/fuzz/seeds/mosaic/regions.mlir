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
      %12 = "stable_mosaic.tpu.dynamic_rotate"(%7, %arg0) {dimension = 1 : si32} : (vector<8x128xf32>, i32) -> vector<8x128xf32>
      "stable_mosaic.scf.yield"(%12, %arg0) : (vector<8x128xf32>, i32) -> ()
    }) : (i1) -> (vector<8x128xf32>, i32)
    %13 = "stable_mosaic.vector.extract_strided_slice"(%11#0) {offsets = [0, 0], sizes = [1, 128], strides = [1, 1]} : (vector<8x128xf32>) -> vector<1x128xf32>
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<parallel>], function_type = (i32, memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>) -> (), iteration_bounds = array<i64: 4>, sym_name = "main", window_params = [{}, {transform_indices = @transform_0, window_bounds = array<i64: 8, 128>}]} : () -> ()
}) {stable_mosaic.version = 11 : i64} : () -> ()
