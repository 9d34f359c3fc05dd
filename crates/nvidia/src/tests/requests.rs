//! One request at a time, with the layouts of 535, 580 and 590.

use super::*;

const UUID: [u8; 16] =
    [0x1b, 0x2c, 0x3d, 0x4e, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0, 0x0f];
const UUID_TEXT: &str = "GPU-1b2c3d4e-5566-7788-99aa-bbccddeef00f";

fn decoder() -> Decoder {
    Decoder::new(Some("580.159.04"))
}

fn with_uuid(mut payload: Vec<u8>, at: usize) -> Vec<u8> {
    payload[at..at + 16].copy_from_slice(&UUID);
    payload
}

#[test]
fn control() {
    let payload =
        bytes(32, &[(0, 0xc1d0_0001), (4, 0x5c00_0002), (8, 0x2080_0102), (24, 564)], &[(16, 0x7ffd_0000)]);
    assert_eq!(
        whole(&mut decoder(), &escape(0x2a, &payload), &[], Some(0)),
        "NV_ESC_RM_CONTROL command=NV2080_CTRL_CMD_GPU_GET_INFO_V2 client=0xc1d00001 object=0x5c000002 \
         params_size=564 -> NV_OK"
    );
    let payload = bytes(32, &[(8, 0x2080_1fff)], &[]);
    assert_eq!(
        begin(&mut decoder(), &escape(0x2a, &payload)),
        "NV_ESC_RM_CONTROL (unknown) command=0x20801fff client=0x0 object=0x0"
    );
    let payload = bytes(32, &[(8, 0x0000_8123)], &[]);
    assert_eq!(
        begin(&mut decoder(), &Ioctl { wrapped: true, ..escape(0x2a, &payload) }),
        "NV_ESC_RM_CONTROL wrapped=true command=GSS_LEGACY_0x00008123 client=0x0 object=0x0"
    );
}

/// The result is at a different offset in each structure; BPF looks at one offset.
#[test]
fn alloc_in_all_its_sizes() {
    let cases: [(&str, usize, usize, &str); 6] = [
        ("515.43.04", 32, 24, ""),
        ("515.43.04", 40, 32, ""),
        ("525.60.13", 40, 36, ""),
        ("535.261.03", 32, 28, " params_size=120"),
        ("535.261.03", 48, 40, " params_size=120"),
        ("580.159.04", 48, 40, " params_size=120"),
    ];
    for (version, size, status, params) in cases {
        let mut payload = bytes(size, &[(0, 0xc1d0_0001), (4, 0xa), (8, 0xb), (12, 0x3e)], &[]);
        if !params.is_empty() {
            let at = if size == 48 { 32 } else { 24 };
            payload[at..at + 4].copy_from_slice(&120_u32.to_le_bytes());
        }
        let mut after = payload.clone();
        after[status..status + 4].copy_from_slice(&0x51_u32.to_le_bytes());
        after.truncate(44);
        let expected = format!(
            "NV_ESC_RM_ALLOC class=NV01_MEMORY_SYSTEM client=0xc1d00001 parent=0xa object=0xb{params} -> NV_ERR_NO_MEMORY"
        );
        let mut decoder = Decoder::new(Some(version));
        assert_eq!(whole(&mut decoder, &escape(0x2b, &payload), &after, None), expected, "{version} {size}");
    }
    // BPF read offset 40, which is not the result's offset in a structure of 32 bytes.
    let payload = bytes(32, &[(12, 0x3e)], &[]);
    let begun = decoder().begin(&escape(0x2b, &payload));
    assert_eq!(decoder().end(&begun.pending, 0, None, Some(0x56)).status, None);
    // The driver's version is unknown, but the size still identifies the structure.
    let payload = bytes(40, &[(12, 0x3e), (32, 7)], &[]);
    let text = begin(&mut Decoder::new(None), &escape(0x2b, &payload));
    assert_eq!(text, "NV_ESC_RM_ALLOC class=NV01_MEMORY_SYSTEM client=0x0 parent=0x0 flags=0x7");
}

/// A request and its parameters may both have flags: each key is unique in its line.
#[test]
fn alloc_flags_and_those_of_its_parameters_are_two_keys() {
    let payload = bytes(48, &[(12, 0x9067), (32, 12), (36, 7)], &[(16, 0x7ffd_1000)]);
    let params = bytes(12, &[(0, 9), (4, 1), (8, 2)], &[]);
    let text = begin(&mut decoder(), &Ioctl { second: Some(&params), ..escape(0x2b, &payload) });
    assert_eq!(
        text,
        "NV_ESC_RM_ALLOC class=FERMI_CONTEXT_SHARE_A client=0x0 parent=0x0 params_size=12 flags=0x7 \
         vaspace=0x9 params_flags=0x1 subcontext=2"
    );
}

#[test]
fn alloc_parameters() {
    let alloc = |class: u32, params: &[u8], size: u32| {
        let payload = bytes(48, &[(0, 1), (4, 2), (8, 3), (12, class), (32, size)], &[(16, 0x7ffd_1000)]);
        let text = begin(&mut decoder(), &Ioctl { second: Some(params), ..escape(0x2b, &payload) });
        text.strip_prefix("NV_ESC_RM_ALLOC class=").unwrap().replace(" client=0x1 parent=0x2 object=0x3", "")
    };
    let memory = bytes(
        136,
        &[(4, 13), (8, 0x1c101), (24, 0x1500_0000), (108, 0x90)],
        &[(64, 2 << 20), (72, 0x20_0000)],
    );
    assert_eq!(
        alloc(0x40, &memory, 128),
        "NV01_MEMORY_LOCAL_USER params_size=128 size=2097152 alignment=2097152 type=13 flags=0x1c101 \
         attr=0x15000000 attr2=0x0 vaspace=0x90"
    );
    let channel = bytes(136, &[(16, 1024), (20, 0x20), (24, 0xcc), (128, 9)], &[(8, 0x2_0040_0000)]);
    assert_eq!(
        alloc(0xc86f, &channel, 0),
        "HOPPER_CHANNEL_GPFIFO_A engine=COPY0 entries=1024 address=0x200400000 flags=0x20 context_share=0xcc"
    );
    assert_eq!(
        alloc(0xa06c, &bytes(20, &[(8, 0x90), (12, 1)], &[]), 20),
        "KEPLER_CHANNEL_GROUP_A params_size=20 engine=GR0 vaspace=0x90"
    );
    assert_eq!(
        alloc(0xa06c, &bytes(20, &[(12, 0x77)], &[]), 20),
        "KEPLER_CHANNEL_GROUP_A params_size=20 engine=119"
    );
    assert_eq!(
        alloc(0x90f1, &bytes(136, &[], &[(8, 1 << 40)]), 0),
        "FERMI_VASPACE_A size=1099511627776 index=0 flags=0x0"
    );
    assert_eq!(
        alloc(0x9067, &bytes(12, &[(0, 9), (4, 1), (8, 2)], &[]), 12),
        "FERMI_CONTEXT_SHARE_A params_size=12 vaspace=0x9 flags=0x1 subcontext=2"
    );
    assert_eq!(alloc(0x80, &bytes(56, &[(0, 5)], &[]), 56), "NV01_DEVICE_0 params_size=56 device=5");
    assert_eq!(alloc(0x2080, &bytes(4, &[(0, 0)], &[]), 4), "NV20_SUBDEVICE_0 params_size=4 subdevice=0");
    let event = bytes(24, &[(0, 1), (4, 0xe), (8, 0x79), (12, 0x1000_0023)], &[(16, 17)]);
    assert_eq!(
        alloc(0x79, &event, 24),
        "NV01_EVENT_OS_EVENT params_size=24 event_class=NV01_EVENT_OS_EVENT source=0xe parent_client=0x1 \
         notify_index=0x10000023 data=0x11"
    );
    let mut client = bytes(136, &[(0, 1), (4, 4242)], &[]);
    client[8..14].copy_from_slice(b"python");
    assert_eq!(
        alloc(0x41, &client, 108),
        "NV01_ROOT_CLIENT params_size=108 process=4242 process_name=python"
    );
    assert_eq!(alloc(0x41, &client, 4), "NV01_ROOT_CLIENT params_size=4", "four bytes are only the handle");
}

#[test]
fn unknown_class_and_unread_parameters() {
    let payload = bytes(48, &[(12, 0xf00d)], &[(16, 0x7ffd_1000)]);
    assert_eq!(
        begin(&mut decoder(), &escape(0x2b, &payload)),
        "NV_ESC_RM_ALLOC (unknown) class=0xf00d client=0x0 parent=0x0"
    );
    let payload = bytes(48, &[(12, 0x40)], &[(16, 0x7ffd_1000)]);
    let text = begin(&mut decoder(), &escape(0x2b, &payload));
    assert!(text.ends_with("params_unreadable=true"), "{text}");
    let some = bytes(70, &[], &[]);
    let text = begin(&mut decoder(), &Ioctl { second: Some(&some), ..escape(0x2b, &payload) });
    assert!(text.ends_with("type=0 flags=0x0 attr=0x0 attr2=0x0 short=true"), "{text}");
}

#[test]
fn mappings() {
    let map = bytes(56, &[(0, 1), (4, 2), (8, 3), (48, 17)], &[(16, 0x1000), (24, 65536)]);
    let after = bytes(48, &[], &[(32, 0x7f00_0000_1000)]);
    assert_eq!(
        whole(&mut decoder(), &escape(0x4e, &map), &after, Some(0)),
        "NV_ESC_RM_MAP_MEMORY client=0x1 device=0x2 memory=0x3 offset=0x1000 length=65536 address=0x0 fd=17 \
         -> NV_OK address=0x7f0000001000"
    );
    let unmap = bytes(32, &[(0, 1), (4, 2), (8, 3)], &[(16, 0x7f00_0000_1000)]);
    assert_eq!(
        whole(&mut decoder(), &escape(0x4f, &unmap), &[], Some(0)),
        "NV_ESC_RM_UNMAP_MEMORY client=0x1 device=0x2 memory=0x3 address=0x7f0000001000 -> NV_OK"
    );
    let old = bytes(56, &[(0, 1), (8, 3), (12, 4), (32, 8)], &[(24, 4096), (40, 0x2_0000)]);
    assert_eq!(
        whole(&mut Decoder::new(Some("535.261.03")), &escape(0x57, &old), &old, None),
        "NV_ESC_RM_MAP_MEMORY_DMA client=0x1 device=0x0 dma=0x3 memory=0x4 offset=0x0 length=4096 flags=0x8 \
         dma_offset=0x20000 -> NV_OK dma_offset=0x20000"
    );
    let new = bytes(64, &[(0, 1), (36, 5)], &[(24, 4096), (48, 0x3_0000)]);
    assert_eq!(
        begin(&mut decoder(), &escape(0x57, &new)),
        "NV_ESC_RM_MAP_MEMORY_DMA client=0x1 device=0x0 dma=0x0 memory=0x0 offset=0x0 length=4096 flags2=0x5 \
         dma_offset=0x30000"
    );
    let host =
        bytes(56, &[(0, 1), (4, 2), (8, 3), (12, 0x71), (48, u32::MAX)], &[(24, 0x7f12_0000), (32, 0xfffff)]);
    assert_eq!(
        begin(&mut decoder(), &escape(0x27, &host)),
        "NV_ESC_RM_ALLOC_MEMORY class=NV01_MEMORY_SYSTEM_OS_DESCRIPTOR client=0x1 parent=0x2 object=0x3 \
         address=0x7f120000 size=1048576 fd=-1"
    );
    let heap = bytes(184, &[(0, 1), (4, 2), (8, 2), (48, 1)], &[(88, 1 << 30)]);
    let after = bytes(64, &[(44, 0xbeef)], &[(24, 100), (32, 50)]);
    let text = whole(&mut decoder(), &escape(0x4a, &heap), &after, Some(0));
    assert!(text.contains("function=2 function_name=ALLOC_SIZE memory=0x0 type=1"), "{text}");
    assert!(
        text.contains("size=1073741824") && text.ends_with("-> NV_OK total=100 free=50 memory=0xbeef"),
        "{text}"
    );
}

#[test]
fn the_interface_layer() {
    let cards = bytes(64, &[(4, 0), (16, 0x1b00), (56, 3)], &[]);
    let mut cards = cards;
    (cards[0], cards[8], cards[12], cards[13], cards[14], cards[15]) = (1, 0x1b, 0xde, 0x10, 0x35, 0x23);
    let ioctl = Ioctl { payload: None, size: 32 * 72, ..escape(0xc8, &[]) };
    assert_eq!(
        whole(&mut decoder(), &ioctl, &cards, None),
        "NV_ESC_CARD_INFO cards=32 -> - valid=true domain=0 bus=27 slot=0 function=0 vendor_id=0x10de \
         device_id=0x2335 gpu_id=0x1b00 interrupt_line=0 reg_address=0x0 reg_size=0 fb_address=0x0 fb_size=0 minor=3"
    );
    let mut version = bytes(72, &[(0, 0x30)], &[]);
    version[8..18].copy_from_slice(b"580.159.04");
    assert_eq!(
        whole(&mut decoder(), &escape(0xd2, &version), &version[..64], None),
        "NV_ESC_CHECK_VERSION_STR cmd=0x30 version=580.159.04 -> - reply=0 version=580.159.04"
    );
    assert_eq!(
        begin(&mut decoder(), &escape(0xc9, &bytes(4, &[(0, 7)], &[]))),
        "NV_ESC_REGISTER_FD ctl_fd=7"
    );
    assert_eq!(begin(&mut decoder(), &escape(0xd4, &[0; 12])), "NV_ESC_ATTACH_GPUS_TO_FD gpus=3");
    let event = bytes(16, &[(0, 1), (4, 2), (8, 9)], &[]);
    assert_eq!(
        begin(&mut decoder(), &escape(0xce, &event)),
        "NV_ESC_ALLOC_OS_EVENT client=0x1 device=0x2 fd=9"
    );
    let wait = bytes(8, &[(0, (-5_i32) as u32)], &[]);
    assert_eq!(
        whole(&mut decoder(), &escape(0xda, &wait), &wait, Some(0)),
        "NV_ESC_WAIT_OPEN_COMPLETE  -> NV_OK result=-5"
    );
    assert_eq!(begin(&mut decoder(), &escape(0x32, &[])), "NV_ESC_RM_CONFIG_GET");
    let long = [0; 40];
    assert!(begin(&mut decoder(), &escape(0x29, &long)).ends_with("unexpected_size=40"));
    assert_eq!(begin(&mut decoder(), &escape(0xf7, &long)), "0xf7 (unknown) size=40");
}

#[test]
fn unified_memory() {
    let mut d = decoder();
    assert_eq!(whole(&mut d, &uvm(0x3000_0001, &[0; 8]), &[], Some(0)), "UVM_INITIALIZE  -> NV_OK");
    assert_eq!(begin(&mut d, &Ioctl { payload: None, ..uvm(0x3000_0002, &[]) }), "UVM_DEINITIALIZE");
    let gpu = with_uuid(bytes(36, &[(24, u32::MAX), (28, 0xc1)], &[]), 0);
    assert_eq!(
        whole(&mut d, &uvm(37, &gpu), &bytes(24, &[(20, 1)], &[]), Some(0)),
        format!(
            "UVM_REGISTER_GPU gpu_uuid={UUID_TEXT} rm_ctrl_fd=-1 client=0xc1 -> NV_OK numa_enabled=false numa_node_id=1"
        )
    );
    let channel = with_uuid(bytes(48, &[(16, 5), (20, 0xc1), (24, 0xcc)], &[(32, 0x1000), (40, 4096)]), 0);
    assert_eq!(
        begin(&mut d, &uvm(27, &channel)),
        format!(
            "UVM_REGISTER_CHANNEL gpu_uuid={UUID_TEXT} rm_ctrl_fd=5 client=0xc1 channel=0xcc base=0x1000 length=4096"
        )
    );
    let migrate = with_uuid(bytes(56, &[(52, u32::MAX)], &[(0, 0x7f00_0000_0000), (8, 1 << 21)]), 16);
    assert_eq!(
        begin(&mut d, &uvm(51, &migrate)),
        format!(
            "UVM_MIGRATE base=0x7f0000000000 length=2097152 destination_uuid={UUID_TEXT} cpu_numa_node=-1"
        )
    );
    assert_eq!(begin(&mut d, &uvm(200, &[])), "0xc8 (unknown)");
}

#[test]
fn unified_memory_by_version() {
    let mut old = Decoder::new(Some("580.159.04"));
    let mut new = Decoder::new(Some("590.48.01"));
    let free = bytes(24, &[], &[(0, 0x1000), (8, 4096)]);
    assert_eq!(whole(&mut old, &uvm(34, &free), &[], Some(0)), "UVM_FREE base=0x1000 length=4096 -> NV_OK");
    assert_eq!(
        whole(&mut new, &uvm(34, &free[..16]), &[], Some(0x1f)),
        "UVM_FREE base=0x1000 -> NV_ERR_INVALID_ARGUMENT"
    );
    let channel = with_uuid(bytes(24, &[(16, 0xc1), (20, 0xcc)], &[]), 0);
    assert_eq!(
        begin(&mut old, &uvm(28, &channel)),
        format!("UVM_UNREGISTER_CHANNEL gpu_uuid={UUID_TEXT} client=0xc1 channel=0xcc")
    );
    assert_eq!(begin(&mut new, &uvm(28, &channel[16..])), "UVM_UNREGISTER_CHANNEL client=0xc1 channel=0xcc");
    // The part behind the list of GPUs is a piece of its own.
    let head = bytes(24, &[], &[(0, 0x7f00_0000_0000), (8, 1 << 21)]);
    let tail = bytes(20, &[(8, 6), (12, 0xc1), (16, 0xbeef)], &[(0, 1)]);
    let map = Ioctl { second: Some(&tail), ..uvm(33, &head) };
    let expected = "UVM_MAP_EXTERNAL_ALLOCATION base=0x7f0000000000 length=2097152 offset=0x0 gpu_attributes_count=1 \
                    rm_ctrl_fd=6 client=0xc1 memory=0xbeef";
    assert_eq!(begin(&mut old, &map), expected);
    assert_eq!(begin(&mut Decoder::new(Some("535.261.03")), &map), expected);
    assert!(begin(&mut old, &uvm(33, &head)).ends_with("offset=0x0 short=true"));
    let mut place = bytes(36, &[(32, 1)], &[(0, 0x1000), (8, 4096)]);
    place[16..32].copy_from_slice(&[
        0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73,
    ]);
    let text = "UVM_SET_PREFERRED_LOCATION requested_base=0x1000 length=4096 preferred_location=CPU";
    assert_eq!(begin(&mut old, &uvm(42, &place)), format!("{text} preferred_cpu_numa_node=1"));
    assert_eq!(begin(&mut Decoder::new(Some("545.29.06")), &uvm(42, &place)), text);
}

#[test]
fn other_devices() {
    let modeset = Device { family: Family::Nvidia, minor: 254 };
    let payload = bytes(8, &[(0, 12), (4, 240)], &[]);
    let ioctl = Ioctl { device: modeset, ..escape(0, &payload) };
    assert_eq!(begin(&mut decoder(), &ioctl), "NVKMS_IOCTL_CMD command=12 size=240");
    assert_eq!(begin(&mut decoder(), &Ioctl { payload: None, ..ioctl }), "NVKMS_IOCTL_CMD unreadable=true");
    for family in [Family::Caps, Family::Imex, Family::Nvswitch, Family::Nvlink] {
        let ioctl = Ioctl { device: Device { family, minor: 0 }, cmd: 0xc010_6401, ..escape(1, &[0; 16]) };
        assert_eq!(begin(&mut decoder(), &ioctl), "0xc0106401 (unknown) size=16");
    }
    let tools = Device { family: Family::Uvm, minor: 1 };
    let flags = 3_u64.to_le_bytes();
    let ioctl = Ioctl { device: tools, ..uvm(0x3a, &flags) };
    assert_eq!(begin(&mut decoder(), &ioctl), "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS event_type_flags=0x3");
}

/// A payload that was not read, a failed system call, a status that was not read.
#[test]
fn not_everything_is_there() {
    let mut d = decoder();
    let nothing = |nr, size| Ioctl { payload: None, size, ..escape(nr, &[]) };
    assert_eq!(begin(&mut d, &nothing(0x2a, 32)), "NV_ESC_RM_CONTROL (unknown) unreadable=true");
    assert_eq!(begin(&mut d, &nothing(0x2b, 48)), "NV_ESC_RM_ALLOC (unknown) unreadable=true");
    assert_eq!(begin(&mut d, &nothing(0x29, 16)), "NV_ESC_RM_FREE unreadable=true");
    assert_eq!(begin(&mut d, &Ioctl { payload: None, ..uvm(34, &[]) }), "UVM_FREE unreadable=true");
    assert_eq!(
        begin(&mut d, &Ioctl { size: 32, ..escape(0x2a, &[0; 10]) }),
        "NV_ESC_RM_CONTROL (unknown) short=true"
    );
    let payload = bytes(32, &[(8, 0x101)], &[]);
    let begun = d.begin(&escape(0x2a, &payload));
    let failed = d.end(&begun.pending, -14, Some(&payload), Some(0));
    assert!(failed.status.is_none() && failed.out.is_empty());
    assert!(d.end(&begun.pending, 0, None, None).status.is_none());
    assert_eq!(d.end(&begun.pending, 0, None, Some(0xabcd)).status.as_deref(), Some("0xabcd"));
    // What the driver wrote is meaningless if the request failed.
    let map = bytes(56, &[], &[]);
    let begun = d.begin(&escape(0x4e, &map));
    assert!(d.end(&begun.pending, 0, Some(&map), Some(0x1f)).out.is_empty());
}
