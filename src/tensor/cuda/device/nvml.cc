#include "tensor/cuda/device/nvml.h"

#include <dlfcn.h>

#include <array>
#include <memory>

namespace sluice::cuda {
namespace {

// NVML's types, as far as they are used: its header is no part of the CUDA toolkit's packages everywhere.
using Device = void*;
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryV2 = sizeof(MemoryV2) | 2u << 24;
constexpr int kSuccess = 0, kSmClock = 1, kTemperatureOfChip = 0;
constexpr unsigned kVersionLength = 80;

struct Close {
  void operator()(void* library) const { dlclose(library); }
};

class Library {
 public:
  Library() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    ready_ = handle_ && call<int()>("nvmlInit_v2") == kSuccess;
  }
  ~Library() {
    if (ready_) call<int()>("nvmlShutdown");
  }
  bool ready() const { return ready_; }

  // The function's status; -1 where this driver has none of that name.
  template <typename Signature, typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<Signature*>(dlsym(handle_.get(), name));
    return function ? function(arguments...) : -1;
  }

 private:
  std::unique_ptr<void, Close> handle_;
  bool ready_ = false;
};

}  // namespace

std::optional<CardState> card_state(const char* pci_bus_id) {
  const Library nvml;
  Device card = nullptr;
  if (!nvml.ready() ||
      nvml.call<int(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id, &card))
    return {};
  CardState state;
  std::array<char, kVersionLength> driver{};
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", driver.data(), kVersionLength) == kSuccess)
    state.driver = driver.data();

  const auto number = [&](const char* what) {
    unsigned value = 0;
    return nvml.call<int(Device, unsigned*)>(what, card, &value) == kSuccess ? int(value) : 0;
  };
  const auto number_of = [&](const char* what, int kind) {
    unsigned value = 0;
    return nvml.call<int(Device, int, unsigned*)>(what, card, kind, &value) == kSuccess ? int(value) : 0;
  };
  state.power_w = number("nvmlDeviceGetPowerUsage") / 1000;
  state.power_limit_w = number("nvmlDeviceGetEnforcedPowerLimit") / 1000;
  state.clock_mhz = number_of("nvmlDeviceGetClockInfo", kSmClock);
  state.most_clock_mhz = number_of("nvmlDeviceGetMaxClockInfo", kSmClock);
  state.temperature_c = number_of("nvmlDeviceGetTemperature", kTemperatureOfChip);

  MemoryV2 memory{};
  memory.version = kMemoryV2;
  if (nvml.call<int(Device, MemoryV2*)>("nvmlDeviceGetMemoryInfo_v2", card, &memory) == kSuccess)
    state.used_bytes = memory.used;
  return state;
}

std::string describe(const CardState& state) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  const auto of = [](int now, int most, const char* unit) {
    return std::to_string(now) + (most > 0 ? " of " + std::to_string(most) : "") + unit;
  };
  if (!state.driver.empty()) add("driver " + state.driver);
  if (state.power_w > 0) add(of(state.power_w, state.power_limit_w, " W"));
  if (state.clock_mhz > 0) add(of(state.clock_mhz, state.most_clock_mhz, " MHz"));
  if (state.temperature_c > 0) add(std::to_string(state.temperature_c) + " °C");
  return text;
}

}  // namespace sluice::cuda
