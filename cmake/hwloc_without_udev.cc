// hwloc asks libudev for vendor and model of disks, which nobody here wants to know. Linked without libudev,
// the binary runs where there is none: hwloc takes null from udev_new for an answer and asks no more.
extern "C" {
void* udev_new() { return nullptr; }
void* udev_unref(void*) { return nullptr; }
void* udev_device_new_from_subsystem_sysname(void*, const char*, const char*) { return nullptr; }
const char* udev_device_get_property_value(void*, const char*) { return nullptr; }
void* udev_device_unref(void*) { return nullptr; }
}
