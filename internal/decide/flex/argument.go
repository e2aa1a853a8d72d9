package flex

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Keys of the JSON argument that the host sets, not the user (F-006 to F-008).
const (
	KeyFSType         = "kubernetes.io/fsType"
	KeyReadWrite      = "kubernetes.io/readwrite"
	KeyVolumeName     = "kubernetes.io/pvOrVolumeName"
	KeyPodName        = "kubernetes.io/pod.name"
	KeyPodNamespace   = "kubernetes.io/pod.namespace"
	KeyPodUID         = "kubernetes.io/pod.uid"
	KeyServiceAccount = "kubernetes.io/serviceAccount.name"
	KeyFSGroup        = "kubernetes.io/mounterArgs.FsGroup"
	// KeyOldFSGroup is the key of hosts before Kubernetes 1.15.
	KeyOldFSGroup = "kubernetes.io/fsGroup"
	// KeySecretPrefix is the prefix of the keys of the Secret.
	KeySecretPrefix = "kubernetes.io/secret/"
)

// MaxArgument is the length limit, in bytes, of one argument of a program (the kernel's
// MAX_ARG_STRLEN without the final NUL).
const MaxArgument = 128<<10 - 1

// Errors of Argument.
var (
	// ErrTooLong says that the kernel would refuse the argument (F-004).
	ErrTooLong = errors.New("the volume's options and secrets are too long for one argument")
	// ErrOptionKey says that an option has a key that only the host may set (F-005).
	ErrOptionKey = errors.New("option keys below kubernetes.io and k8s.io are the host's")
	// ErrNUL says that a text has a NUL byte, which an argument cannot have.
	ErrNUL = errors.New("zero byte")
)

// PodInfo is the Pod that a volume is mounted for.
type PodInfo struct{ Name, Namespace, UID, ServiceAccount string }

// Volume is what the JSON argument contains of a volume.
type Volume struct {
	// Name is the name of the PersistentVolume, or the name of an inline volume in its Pod.
	Name     string
	FSType   string
	ReadOnly bool
	// Options are the options that the user has set.
	Options map[string]string
	// Secrets are the values of the Secret, not encoded. Only mount receives them, as base64.
	Secrets map[string]string
	// Pod is sent by mount only.
	Pod PodInfo
	// FSGroup, if any, is sent by mount only, under both keys (H10).
	FSGroup *int64
}

// Argument returns the JSON argument of op: one line, with sorted keys, in the form of Kubernetes'
// own host. The error is ErrOptionKey, ErrNUL or ErrTooLong; it never quotes a value.
func Argument(op Operation, v Volume) (string, error) {
	if !op.TakesVolume() {
		return "", fmt.Errorf("%s does not get a JSON argument", op)
	}
	if err := CheckOptions(v.Options); err != nil {
		return "", err
	}
	all := map[string]string{KeyFSType: v.FSType, KeyReadWrite: "rw", KeyVolumeName: v.Name}
	if v.ReadOnly {
		all[KeyReadWrite] = "ro"
	}
	if op == OpMount {
		v.addMount(all)
	}
	maps.Copy(all, v.Options)
	if strings.ContainsRune(v.Name+v.FSType, 0) {
		return "", fmt.Errorf("name or filesystem of the volume: %w", ErrNUL)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("write the argument of %s: %w", op, err)
	}
	if len(b) > MaxArgument {
		return "", fmt.Errorf("%w: %s would get %d bytes, %d are possible", ErrTooLong, op, len(b), MaxArgument)
	}
	return string(b), nil
}

func (v Volume) addMount(all map[string]string) {
	all[KeyPodName] = v.Pod.Name
	all[KeyPodNamespace] = v.Pod.Namespace
	all[KeyPodUID] = v.Pod.UID
	all[KeyServiceAccount] = v.Pod.ServiceAccount
	if v.FSGroup != nil {
		group := strconv.FormatInt(*v.FSGroup, 10)
		all[KeyFSGroup], all[KeyOldFSGroup] = group, group
	}
	for key, value := range v.Secrets {
		all[KeySecretPrefix+key] = base64.StdEncoding.EncodeToString([]byte(value))
	}
}

// CheckOptions refuses options with keys that only the host may set (F-005), and NUL bytes. The
// error is ErrOptionKey or ErrNUL and names the key.
func CheckOptions(options map[string]string) error {
	for key, value := range options {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			return fmt.Errorf("option %q: %w", bounded(key), ErrOptionKey)
		}
		if strings.ContainsRune(key, 0) || strings.ContainsRune(value, 0) {
			return fmt.Errorf("option %q: %w", bounded(key), ErrNUL)
		}
	}
	return nil
}

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

// Optional says whether a volume works equally well without the operation. Then the answer that it is not supported may
// be remembered (H11), and a driver that ends without any answer counts as not supporting it (F-027). A mount or attach
// that crashes without an answer must not count as unsupported.
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
