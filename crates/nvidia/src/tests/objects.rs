//! The objects of handles over the life of a context.

use super::super::handles::Handles;
use super::*;

const CLIENT: u32 = 0xc1d0_0042;
const H200: [(u32, u32, u32, &str); 8] = [
    (CLIENT, 0x5c00_0001, 0x80, "NV01_DEVICE_0"),
    (0x5c00_0001, 0x5c00_0002, 0x2080, "NV20_SUBDEVICE_0"),
    (0x5c00_0001, 0x5c00_0003, 0x90f1, "FERMI_VASPACE_A"),
    (0x5c00_0002, 0x5c00_0004, 0xc661, "HOPPER_USERMODE_A"),
    (0x5c00_0001, 0x5c00_0005, 0xa06c, "KEPLER_CHANNEL_GROUP_A"),
    (0x5c00_0005, 0x5c00_0006, 0xc86f, "HOPPER_CHANNEL_GPFIFO_A"),
    (0x5c00_0006, 0x5c00_0007, 0xcbc0, "HOPPER_COMPUTE_A"),
    (0x5c00_0001, 0x5c00_0008, 0x40, "NV01_MEMORY_LOCAL_USER"),
];

fn alloc(d: &mut Decoder, client: u32, parent: u32, object: u32, class: u32, status: u32) -> String {
    let payload = bytes(48, &[(0, client), (4, parent), (8, object), (12, class)], &[]);
    let mut after = payload.clone();
    if object == 0 {
        after[8..12].copy_from_slice(&CLIENT.to_le_bytes());
    }
    after[40..44].copy_from_slice(&status.to_le_bytes());
    whole(d, &escape(0x2b, &payload), &after[..44], Some(status))
}

fn free(d: &mut Decoder, object: u32) -> String {
    let payload = bytes(16, &[(0, CLIENT), (4, 0x77), (8, object)], &[]);
    whole(d, &escape(0x29, &payload), &[], Some(0))
}

fn context() -> Decoder {
    let mut d = Decoder::new(Some("580.159.04"));
    assert_eq!(
        alloc(&mut d, 0, 0, 0, 0x41, 0),
        "NV_ESC_RM_ALLOC class=NV01_ROOT_CLIENT client=0x0 parent=0x0 -> NV_OK object=0xc1d00042"
    );
    let mut classes = vec![(CLIENT, "NV01_ROOT_CLIENT")];
    for (parent, object, class, name) in H200 {
        let above = classes.iter().find(|(known, _)| *known == parent).unwrap().1;
        assert_eq!(
            alloc(&mut d, CLIENT, parent, object, class, 0),
            format!(
                "NV_ESC_RM_ALLOC class={name} client={CLIENT:#x} parent={parent:#x} object={object:#x} \
                 parent_class={above} -> NV_OK"
            )
        );
        classes.push((object, name));
    }
    d
}

#[test]
fn a_context_is_made_and_used() {
    let mut d = context();
    assert_eq!(d.objects(), 9);
    let control = |command, object| bytes(32, &[(0, CLIENT), (4, object), (8, command), (24, 3)], &[]);
    assert_eq!(
        whole(&mut d, &escape(0x2a, &control(0xa06c_0101, 0x5c00_0005)), &[], Some(0)),
        "NV_ESC_RM_CONTROL command=NVA06C_CTRL_CMD_GPFIFO_SCHEDULE client=0xc1d00042 object=0x5c000005 \
         object_class=KEPLER_CHANNEL_GROUP_A params_size=3 -> NV_OK"
    );
    assert_eq!(
        whole(&mut d, &escape(0x2a, &control(0xc36f_0108, 0x5c00_0006)), &[], Some(0)),
        "NV_ESC_RM_CONTROL command=NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN client=0xc1d00042 \
         object=0x5c000006 object_class=HOPPER_CHANNEL_GPFIFO_A params_size=3 -> NV_OK"
    );
    let map = bytes(56, &[(0, CLIENT), (4, 0x5c00_0002), (8, 0x5c00_0004), (48, 9)], &[(24, 65536)]);
    let text = begin(&mut d, &escape(0x4e, &map));
    assert!(text.contains("memory=0x5c000004 memory_class=HOPPER_USERMODE_A"), "{text}");
    let channel = bytes(48, &[(20, CLIENT), (24, 0x5c00_0006)], &[]);
    let text = begin(&mut d, &uvm(27, &channel));
    assert!(text.contains("channel=0x5c000006 channel_class=HOPPER_CHANNEL_GPFIFO_A"), "{text}");
    let tail = bytes(20, &[(12, CLIENT), (16, 0x5c00_0008)], &[]);
    let text = begin(&mut d, &Ioctl { second: Some(&tail), ..uvm(33, &[0; 24]) });
    assert!(text.ends_with("memory=0x5c000008 memory_class=NV01_MEMORY_LOCAL_USER"), "{text}");
}

#[test]
fn freeing_a_parent_frees_its_children() {
    let mut d = context();
    assert_eq!(
        free(&mut d, 0x5c00_0005),
        "NV_ESC_RM_FREE client=0xc1d00042 parent=0x77 object=0x5c000005 class=KEPLER_CHANNEL_GROUP_A -> NV_OK"
    );
    assert_eq!(d.objects(), 6, "the group, the channel, the compute object");
    assert!(!free(&mut d, 0x5c00_0007).contains("class="));
    assert!(free(&mut d, CLIENT).contains("class=NV01_ROOT_CLIENT"));
    assert_eq!(d.objects(), 0);
}

#[test]
fn only_what_succeeded_counts() {
    let mut d = context();
    alloc(&mut d, CLIENT, 0x5c00_0001, 0x99, 0x3e, 0x51);
    assert_eq!(d.objects(), 9, "a failed allocation");
    let payload = bytes(16, &[(0, CLIENT), (8, 0x5c00_0001)], &[]);
    let begun = d.begin(&escape(0x29, &payload));
    d.end(&begun.pending, -22, None, None);
    d.end(&begun.pending, 0, None, Some(0x57));
    assert_eq!(d.objects(), 9, "failed frees");
    d.end(&begun.pending, 0, None, None);
    assert_eq!(d.objects(), 1, "a free of which the result is not known");
    alloc(&mut d, CLIENT, CLIENT, 0x99, 0x80, 0x1_0001);
    assert_eq!(d.objects(), 2, "a warning is a success");
    alloc(&mut d, 0, 0, CLIENT, 0x41, 0);
    assert_eq!(d.objects(), 1, "the handle of a client whose end was not seen is used again");
}

#[test]
fn duplicates() {
    let mut d = context();
    let other = 0xc1d0_0099;
    alloc(&mut d, 0, 0, other, 0x41, 0);
    let dup = bytes(28, &[(0, other), (4, other), (12, CLIENT), (16, 0x5c00_0008)], &[]);
    let after = bytes(12, &[(8, 0xcafe)], &[]);
    assert_eq!(
        whole(&mut d, &escape(0x34, &dup), &after, Some(0)),
        "NV_ESC_RM_DUP_OBJECT client=0xc1d00099 parent=0xc1d00099 source_client=0xc1d00042 \
         source_object=0x5c000008 class=NV01_MEMORY_LOCAL_USER parent_class=NV01_ROOT_CLIENT -> NV_OK object=0xcafe"
    );
    free(&mut d, CLIENT);
    let control = bytes(32, &[(0, other), (4, 0xcafe), (8, 0x0041_0110)], &[]);
    assert!(begin(&mut d, &escape(0x2a, &control)).ends_with("object_class=NV01_MEMORY_LOCAL_USER"));
    // A heap's free ends an object too.
    let heap = bytes(184, &[(0, other), (8, 3), (44, 0xcafe)], &[]);
    let text = whole(&mut d, &escape(0x4a, &heap), &[], Some(0));
    assert!(text.contains("function_name=FREE memory=0xcafe memory_class=NV01_MEMORY_LOCAL_USER"), "{text}");
    assert_eq!(d.objects(), 1);
}

/// The recording began when the context existed: its objects have no class, but the tree is kept.
#[test]
fn joined_later() {
    let mut d = Decoder::new(Some("580.159.04"));
    alloc(&mut d, CLIENT, 0x11, 0x12, 0x40, 0);
    alloc(&mut d, CLIENT, 0x12, 0x13, 0x40, 0);
    assert_eq!(d.objects(), 4, "the client and the parent stand in");
    free(&mut d, 0x11);
    assert_eq!(d.objects(), 1);
}

#[test]
fn full() {
    let mut h = Handles::new(10);
    for client in 1..=4 {
        h.add_client(client, 0x41);
        for object in 0..3 {
            h.add(client, client, 100 + object, Some(0x40));
        }
    }
    assert!(h.len() <= 10);
    assert_eq!((h.class(1, 100), h.class(2, 1)), (None, None), "the oldest went");
    assert_eq!((h.class(4, 102), h.class(4, 4)), (Some(0x40), Some(0x41)));
    assert_eq!(h.forgotten() as usize, 16 - h.len());
    // A client with too many objects keeps those it had.
    let mut h = Handles::new(10);
    h.add_client(1, 0x41);
    for object in 2..100 {
        h.add(1, 1, object, Some(object));
    }
    assert_eq!((h.len(), h.class(1, 2), h.class(1, 50), h.forgotten()), (10, Some(2), None, 89));
    h.remove(1, 1);
    assert_eq!(h.len(), 0);
    h.add_client(7, 0x41);
    h.add(7, 9, 8, Some(1));
    assert_eq!((h.len(), h.class(7, 8), h.class(7, 9)), (3, Some(1), None));
}

type Model = std::collections::HashMap<(u32, u32), (u32, Option<u32>)>;

fn gone(model: &mut Model, client: u32, top: u32) {
    let mut dead = vec![top];
    while let Some(at) = dead.pop() {
        model.remove(&(client, at));
        dead.extend(model.iter().filter(|(k, v)| k.0 == client && v.0 == at).map(|(k, _)| k.1));
    }
}

/// Compares the table with a plain map of every object with its parent and class.
#[test]
fn like_a_plain_model() {
    let mut random = super::hostile::Random(7);
    let mut model = Model::new();
    let mut handles = Handles::new(1 << 20);
    for step in 0..20_000 {
        let client = 1 + random.below(4);
        let (parent, object) = (10 + random.below(60), 10 + random.below(60));
        if random.below(5) == 0 {
            handles.remove(client, object);
            gone(&mut model, client, object);
        } else if parent != object {
            handles.add(client, parent, object, Some(object));
            gone(&mut model, client, object);
            model.entry((client, client)).or_insert((0, None));
            model.entry((client, parent)).or_insert((client, None));
            model.insert((client, object), (parent, Some(object)));
        }
        assert_eq!(handles.len(), model.len(), "step {step}");
        let wanted = model.get(&(client, object)).and_then(|v| v.1);
        assert_eq!(handles.class(client, object), wanted, "step {step}");
    }
}
