#include "tensor/cuda/device/nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <iterator>
#include <memory>
#include <utility>

#include "tensor/card_watch.h"

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

// A card as NVML knows it; null handle: it does not.
struct Card {
  Card(const Library& library, const char* pci_bus_id) : nvml(library) {
    if (nvml.ready() &&
        nvml.call<int(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id, &handle))
      handle = nullptr;
  }
  int number(const char* what) const {
    unsigned value = 0;
    return nvml.call<int(Device, unsigned*)>(what, handle, &value) == kSuccess ? int(value) : 0;
  }
  int number_of(const char* what, int kind) const {
    unsigned value = 0;
    return nvml.call<int(Device, int, unsigned*)>(what, handle, kind, &value) == kSuccess ? int(value) : 0;
  }

  const Library& nvml;
  Device handle = nullptr;
};

// Bits of nvmlClocksEventReasons that mean less speed than was asked for, the worst first.
constexpr std::pair<unsigned long long, const char*> kReasons[] = {{0x08, "hardware slowdown"},
                                                                   {0x40, "hardware thermal slowdown"},
                                                                   {0x80, "power brake"},
                                                                   {0x20, "software thermal slowdown"},
                                                                   {0x04, "power cap"},
                                                                   {0x10, "sync boost group"},
                                                                   {0x02, "application clocks setting"}};

// Bytes a second of a lane, by generation of PCIe, encoding taken off.
constexpr double kLaneBytes[] = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};

class NvmlWatch final : public CardWatch {
 public:
  NvmlWatch(const char* pci_bus_id, std::string name) : card_(library_, pci_bus_id), name_(std::move(name)) {}
  bool ready() const { return card_.handle != nullptr; }

  CardReading read() override {
    CardReading r;
    r.name = name_;
    r.clock_mhz = card_.number_of("nvmlDeviceGetClockInfo", kSmClock);
    r.most_clock_mhz = card_.number_of("nvmlDeviceGetMaxClockInfo", kSmClock);
    r.power_w = card_.number("nvmlDeviceGetPowerUsage") * 1e-3;
    r.power_limit_w = card_.number("nvmlDeviceGetEnforcedPowerLimit") * 1e-3;
    r.temperature_c = card_.number_of("nvmlDeviceGetTemperature", kTemperatureOfChip);
    unsigned long long reasons = 0;
    library_.call<int(Device, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons", card_.handle,
                                                    &reasons);
    for (const auto& [bit, words] : kReasons)
      if (reasons & bit && r.throttled_by.empty()) r.throttled_by = words;
    std::array<unsigned, 2> busy{};  // percent: kernels, memory
    library_.call<int(Device, unsigned*)>("nvmlDeviceGetUtilizationRates", card_.handle, busy.data());
    r.utilisation = busy[0] * 1e-2, r.memory_utilisation = busy[1] * 1e-2;
    constexpr int kSent = 0, kReceived = 1;  // counted in KB/s
    r.pcie_bytes_s = 1e3 * (double(card_.number_of("nvmlDeviceGetPcieThroughput", kSent)) +
                            double(card_.number_of("nvmlDeviceGetPcieThroughput", kReceived)));
    const auto generation = size_t(card_.number("nvmlDeviceGetCurrPcieLinkGeneration"));
    if (generation < std::size(kLaneBytes))
      r.pcie_peak_bytes_s = kLaneBytes[generation] * card_.number("nvmlDeviceGetCurrPcieLinkWidth");
    return r;
  }

 private:
  const Library library_;
  const Card card_;
  const std::string name_;
};

}  // namespace

std::optional<CardState> card_state(const char* pci_bus_id) {
  const Library nvml;
  const Card card(nvml, pci_bus_id);
  if (!card.handle) return {};
  CardState state;
  std::array<char, kVersionLength> driver{};
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", driver.data(), kVersionLength) == kSuccess)
    state.driver = driver.data();

  state.power_w = card.number("nvmlDeviceGetPowerUsage") / 1000;
  state.power_limit_w = card.number("nvmlDeviceGetEnforcedPowerLimit") / 1000;
  state.clock_mhz = card.number_of("nvmlDeviceGetClockInfo", kSmClock);
  state.most_clock_mhz = card.number_of("nvmlDeviceGetMaxClockInfo", kSmClock);
  state.temperature_c = card.number_of("nvmlDeviceGetTemperature", kTemperatureOfChip);

  MemoryV2 memory{};
  memory.version = kMemoryV2;
  if (nvml.call<int(Device, MemoryV2*)>("nvmlDeviceGetMemoryInfo_v2", card.handle, &memory) == kSuccess)
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

namespace sluice {

std::string card_bus_id(int device) {
  std::array<char, 32> id{};
  if (cudaDeviceGetPCIBusId(id.data(), int(id.size()), device) == cudaSuccess) return id.data();
  cudaGetLastError();  // an answer, not an error state
  return {};
}

std::unique_ptr<CardWatch> watch_card(int device) {
  const std::string bus_id = card_bus_id(device);
  cudaDeviceProp properties;
  if (bus_id.empty() || cudaGetDeviceProperties(&properties, device) != cudaSuccess) return nullptr;
  auto watch = std::make_unique<cuda::NvmlWatch>(bus_id.c_str(), properties.name);
  if (!watch->ready()) return nullptr;
  return watch;
}

}  // namespace sluice
