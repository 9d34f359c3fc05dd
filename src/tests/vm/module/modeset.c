// SPDX-License-Identifier: GPL-2.0
/* Stands in for nvidia-modeset.ko: one request, whose payload names a command and where its parameters are. */
#include "standin.h"

#include <linux/cdev.h>
#include <linux/module.h>
#include <linux/uaccess.h>

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stand-in for a display driver, for tests");

struct standin_functions standin_here = {.list = LLIST_HEAD_INIT(standin_here.list), .module = "nvidia_modeset"};
static struct cdev device;
#define NUMBER MKDEV(NV_MAJOR, NV_MINOR_MODESET)

FN long nvkms_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
FN long nvkms_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
    struct standin_ioctl ioctl = {.device = "nvidia-modeset", .minor = NO_NUMBER, .nr = _IOC_NR(cmd)};
    struct {
        u32 cmd, size;
        u64 address;
    } params;
    HERE;
    if (_IOC_TYPE(cmd) != 'm' || _IOC_NR(cmd) || _IOC_SIZE(cmd) != sizeof(params)) {
        ioctl.returned = -ENOTTY;
    } else if (copy_from_user(&params, (void __user *)arg, sizeof(params))) {
        ioctl.returned = -EFAULT;
    } else {
        ioctl.has_detail = true;
        ioctl.detail = params.cmd;
        ioctl.returned = params.cmd < 64 ? 0 : -EPERM;
    }
    standin_count_ioctl(&ioctl);
    return ioctl.returned;
}

static const struct file_operations operations = {.owner = THIS_MODULE, .unlocked_ioctl = nvkms_unlocked_ioctl};

static int __init standin_modeset_init(void)
{
    int result = register_chrdev_region(NUMBER, 1, "nvidia-modeset");
    if (result)
        return result;
    cdev_init(&device, &operations);
    device.owner = THIS_MODULE;
    result = cdev_add(&device, NUMBER, 1);
    if (result)
        unregister_chrdev_region(NUMBER, 1);
    else
        standin_functions_add(&standin_here);
    return result;
}

static void __exit standin_modeset_exit(void)
{
    cdev_del(&device);
    unregister_chrdev_region(NUMBER, 1);
    standin_functions_remove(&standin_here);
}

module_init(standin_modeset_init);
module_exit(standin_modeset_exit);
