package identity

import (
	"errors"
	"fmt"
	"time"
)

// Inviting are the facts that decide whether a host may be invited as a control plane.
type Inviting struct {
	Name string
	// Administrator says that the requesting user has all rights, which is what the invitation grants.
	Administrator bool
	// Prefix begins the keys of the objects in an etcd that others run; "" if the control plane has an etcd of its own.
	Prefix string
	// Known means that a Node with the name exists.
	Known bool
}

// Reasons why a control plane is not invited.
var (
	// ErrNotAdministrator says that the user does not have all rights.
	ErrNotAdministrator = errors.New("not an administrator")
	// ErrOwnStore says that no other host reaches the objects.
	ErrOwnStore = errors.New("an etcd of its own")
	// ErrKnown says that the name belongs to another host.
	ErrKnown = errors.New("a name in use")
)

// Check returns an error unless the host may be invited.
func (i Inviting) Check() error {
	switch {
	case !i.Administrator:
		return fmt.Errorf("%w: an invitation of a control plane is worth the keys of everything, so only a member of the "+
			"group system:masters may create one: use admin.kubeconfig", ErrNotAdministrator)
	case i.Prefix == "":
		return CheckStore(i.Prefix)
	case i.Known:
		return fmt.Errorf("%w: Node %s exists, so another host has this name: choose another name, or give up that host "+
			"with volplane delete node %s --lost", ErrKnown, i.Name, i.Name)
	}
	return nil
}

// CheckStore returns an error unless another host can reach the objects below a prefix.
func CheckStore(prefix string) error {
	if prefix != "" {
		return nil
	}
	return fmt.Errorf("%w: the objects of this control plane are in its data directory, where no other host reaches "+
		"them: stop it, move them with volplane migrate-store --to external --etcd-servers=... --etcd-prefix=..., start it, "+
		"and invite then", ErrOwnStore)
}

// Validate returns an error for a request that no user may be granted.
func (q Invite) Validate() error {
	if q.Kind != KindNode && q.Kind != KindControlPlane {
		return fmt.Errorf("an invitation cannot be of kind %.40q", string(q.Kind))
	}
	if most := q.Kind.Longest(); q.Seconds < 1 || q.Seconds > int64(most/time.Second) {
		return fmt.Errorf("an invitation of a %s is valid for at least a second and at most %v", q.Kind, most)
	}
	return nil
}

// Keys are what a host needs to be a control plane of the objects of another one. They must not get into logs, errors,
// or files that others may read.
type Keys struct {
	// CACert, CAKey and ServiceAccountKey are the files of the certificate authority.
	CACert            []byte `json:"caCert"`
	CAKey             []byte `json:"caKey"`
	ServiceAccountKey []byte `json:"serviceAccountKey"`
	// Encryption is the file with volplane's own key of Secrets; nil if ProviderConfig is set.
	Encryption []byte `json:"encryption,omitempty"`
	// ProviderConfig is the hash of the file of --encryption-provider-config, if there is one.
	ProviderConfig string `json:"providerConfig,omitempty"`
	// Prefix begins the keys of the objects in the store.
	Prefix string `json:"prefix"`
	// Epoch is that of the invitation: a host that is given up later is refused.
	Epoch Epoch `json:"epoch,omitempty"`
}

// String keeps the keys out of all formatted output.
func (k Keys) String() string { return "keys of the control plane" }

// GoString does the same.
func (k Keys) GoString() string { return k.String() }

// Wanted is what a host expects of the keys that it receives.
type Wanted struct {
	// From is the address of the control plane.
	From string
	// Prefix is --etcd-prefix.
	Prefix string
	// ConfigFile is --encryption-provider-config, and Config the hash of the file; "" if there is none.
	ConfigFile, Config string
}

// Check returns an error unless the host can use the keys.
func (k Keys) Check(w Wanted) error {
	switch {
	case k.Prefix != w.Prefix:
		return fmt.Errorf("--etcd-prefix is %s, and the objects of the control plane at %s are below %.200q: use that "+
			"prefix, and the --etcd-servers of that control plane", w.Prefix, w.From, k.Prefix)
	case k.ProviderConfig != "" && w.ConfigFile == "":
		return fmt.Errorf("the control plane at %s encrypts Secrets as its --encryption-provider-config says: copy that "+
			"file to this host, and name it with --encryption-provider-config", w.From)
	case k.ProviderConfig != "" && k.ProviderConfig != w.Config:
		return fmt.Errorf("%s is not the file of --encryption-provider-config of the control plane at %s, which could not "+
			"read what this host writes: copy that file to this host", w.ConfigFile, w.From)
	case k.ProviderConfig == "" && w.ConfigFile != "":
		return fmt.Errorf("the control plane at %s has no --encryption-provider-config, and could not read what this host "+
			"writes: omit --encryption-provider-config", w.From)
	case k.ProviderConfig == "" && len(k.Encryption) == 0:
		return fmt.Errorf("the answer of the control plane at %s has no key of Secrets: use the same version of volplane on "+
			"both hosts", w.From)
	}
	return nil
}

// Joining are the facts that decide what a start with an invitation of a control plane does.
type Joining struct {
	// File is the path of the invitation, and Gone means that it does not exist.
	File string
	Gone bool
	// Invited says that the file is an invitation: of Kind, for Name, by a control plane with Authority, which is the hash
	// of its certificate.
	Invited   bool
	Kind      Kind
	Name      string
	Authority string
	// Node is --name, or "".
	Node string
	// DataDir is the data directory, and Own the hash of the authority in it; "" if it has none.
	DataDir string
	Own     string
	// Etcd is the path of an etcd in the data directory, and Used that of something which shows that it has had objects;
	// "" if there is none.
	Etcd, Used string
	// Store means that the store is known, from flags or from the data directory.
	Store bool
}

// Fetch returns whether the host has to fetch the keys: it has them if it has joined before. The error says why it
// can do neither.
func (j Joining) Fetch() (bool, error) {
	switch {
	case j.Etcd != "":
		return false, fmt.Errorf("%s has objects of its own, in %s, and a control plane that joins has those of another "+
			"one: choose another directory with --data-dir, or start without --join", j.DataDir, j.Etcd)
	case j.Gone && j.Own == "":
		return false, fmt.Errorf("%s does not exist, and %s has no keys yet: get an invitation with 'volplane invite "+
			"--control-plane NAME' on the host of a control plane", j.File, j.DataDir)
	case j.Gone:
		return false, nil
	}
	if err := j.checkInvitation(); err != nil {
		return false, err
	}
	switch {
	case j.Own == j.Authority:
		return false, nil
	case j.Own != "":
		return false, fmt.Errorf("%s has the keys of another control plane: the hash of its certificate authority is %.12s, "+
			"and %s is for the one with %.12s: choose another directory with --data-dir", j.DataDir, j.Own, j.File, j.Authority)
	case j.Used != "":
		return false, fmt.Errorf("%s exists, so %s has been used, but not by a control plane of the one in %s: choose "+
			"another directory with --data-dir", j.Used, j.DataDir, j.File)
	case !j.Store:
		return false, errors.New("--join needs --etcd-servers and --etcd-prefix of the control plane that has invited this " +
			"host, and --etcd-cafile, --etcd-certfile and --etcd-keyfile if it has them: the invitation does not lead to its " +
			"store")
	}
	return true, nil
}

// checkInvitation returns an error unless the file invites this host as a control plane.
func (j Joining) checkInvitation() error {
	switch {
	case !j.Invited:
		return fmt.Errorf("%s is not an invitation: use the output of 'volplane invite --control-plane NAME'", j.File)
	case j.Kind != KindControlPlane:
		return fmt.Errorf("%s invites node %s, not a control plane: start an agent with 'volplane node --join %s', or get "+
			"the right file with 'volplane invite --control-plane NAME'", j.File, j.Name, j.File)
	case j.Node != "" && j.Node != j.Name:
		return fmt.Errorf("%s invites %s, and --name is %s: omit --name, or get the right file with 'volplane invite "+
			"--control-plane %s'", j.File, j.Name, j.Node, j.Node)
	}
	return nil
}
