package flex

// Operation is the first argument of a driver's call.
type Operation string

// The operations, in the order of a volume's life.
const (
	OpInit          Operation = "init"
	OpGetVolumeName Operation = "getvolumename"
	OpAttach        Operation = "attach"
	OpIsAttached    Operation = "isattached"
	OpWaitForAttach Operation = "waitforattach"
	OpMountDevice   Operation = "mountdevice"
	OpMount         Operation = "mount"
	OpExpandVolume  Operation = "expandvolume"
	OpExpandFS      Operation = "expandfs"
	OpUnmount       Operation = "unmount"
	OpUnmountDevice Operation = "unmountdevice"
	OpDetach        Operation = "detach"
)

// Operations returns all operations, in the order of a volume's life.
func Operations() []Operation {
	return []Operation{
		OpInit, OpGetVolumeName, OpAttach, OpIsAttached, OpWaitForAttach, OpMountDevice, OpMount,
		OpExpandVolume, OpExpandFS, OpUnmount, OpUnmountDevice, OpDetach,
	}
}

// Optional says whether a volume works equally well without the operation. Then the answer that it
// is not supported may be remembered (H11), and a driver that ends without any answer counts as not
// supporting it (F-027). A mount or attach that crashes without an answer must not count as
// unsupported.
func (o Operation) Optional() bool {
	switch o {
	case OpGetVolumeName, OpIsAttached, OpWaitForAttach, OpExpandVolume, OpExpandFS:
		return true
	default:
		return false
	}
}

// TakesVolume says whether the operation has a volume's JSON as an argument.
func (o Operation) TakesVolume() bool {
	switch o {
	case OpGetVolumeName, OpAttach, OpIsAttached, OpWaitForAttach, OpMountDevice, OpMount, OpExpandVolume, OpExpandFS:
		return true
	default:
		return false
	}
}

// Asks says whether the operation only reads: a driver changes nothing.
func (o Operation) Asks() bool {
	switch o {
	case OpInit, OpGetVolumeName, OpIsAttached:
		return true
	default:
		return false
	}
}
