//! An empty library. Linking against it makes gpurec-nvml depend on NVIDIA's library, which has the same name. In:
//! nothing. Out: nothing.

#![no_std]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
