#include <gtest/gtest.h>

#include <cstdio>

#include "lanes/xla/pjrt/client.h"
#include "lanes/xla/pjrt/find_plugins.h"
namespace tessera::pjrt {
TEST(First, Works) {
  const auto found = FindPlugins();
  ASSERT_FALSE(found.empty());
  auto plugin = Plugin::Load(found.back().path);
  ASSERT_TRUE(plugin) << tessera::ToText(plugin.error());
  const PluginInfo& i = (*plugin)->info();
  printf("%s %ld.%ld xla=%s shlo=%s min=%s id=%s\n", i.path.c_str(), i.api_major, i.api_minor, i.xla_version.c_str(),
         i.stablehlo_version.c_str(), i.stablehlo_minimum.c_str(), i.identity.c_str());
  auto client = Client::Get(**plugin);
  ASSERT_TRUE(client) << tessera::ToText(client.error());
  printf("%s | %s | %zu %s\n", (*client)->platform().c_str(), (*client)->platform_version().c_str(),
         (*client)->devices().size(), (*client)->devices()[0].kind.c_str());
  const TensorType f{ElementType::kF32, {2, 3}};
  auto exe = (*client)->Compile(
      "func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> { %0 = stablehlo.add %a, %b : "
      "tensor<2x3xf32>  return %0 : tensor<2x3xf32> }",
      {.inputs = {f, f}});
  ASSERT_TRUE(exe) << tessera::ToText(exe.error());
  for (int d = 0; d < 2; ++d) {
    std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {10, 20, 30, 40, 50, 60}, c(6);
    auto ba = (*client)->Upload(f, std::as_bytes(std::span(a)), d);
    auto bb = (*client)->Upload(f, std::as_bytes(std::span(b)), d);
    ASSERT_TRUE(ba && bb);
    const Buffer* args[] = {&*ba, &*bb};
    auto out = exe->Execute(args, {.device = d});
    ASSERT_TRUE(out) << tessera::ToText(out.error());
    auto ok = (*out)[0].Download(std::as_writable_bytes(std::span(c)));
    ASSERT_TRUE(ok) << tessera::ToText(ok.error());
    EXPECT_EQ(c[5], 66);
  }
  auto fig = exe->Figures();
  printf("code %ld arg %ld out %ld alias %ld temp %ld peak %ld flops %g bytes %g\n", fig->generated_code_bytes,
         fig->argument_bytes, fig->output_bytes, fig->alias_bytes, fig->temp_bytes, fig->peak_bytes, fig->flops,
         fig->bytes_accessed);
  auto opt = exe->Optimized();
  ASSERT_TRUE(opt) << tessera::ToText(opt.error());
  for (auto& [k, v] : opt->opcodes) printf("%s %ld\n", k.c_str(), v);
  auto bytes = exe->Serialize();
  ASSERT_TRUE(bytes) << tessera::ToText(bytes.error());
  printf("serialized %zu\n", bytes->size());
}
}  // namespace tessera::pjrt
