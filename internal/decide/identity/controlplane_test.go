package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/internal/decide/identity"
)

// says wants an error that has words, or none if there are none.
func says(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if (err != nil) != (len(words) > 0) {
		t.Errorf("%s: %v, want %q", what, err, words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", what, err, word)
		}
	}
}

// TestInviting: who may invite a control plane, over which store, and by which name.
func TestInviting(t *testing.T) {
	may := identity.Inviting{Name: "two", Administrator: true, Prefix: "/volplane/here"}
	says(t, "an administrator", may.Check())
	for name, c := range map[string]struct {
		change func(*identity.Inviting)
		is     error
		says   string
	}{
		"another user": {
			func(i *identity.Inviting) { i.Administrator = false }, identity.ErrNotAdministrator, "use admin.kubeconfig",
		},
		"an etcd of its own": {func(i *identity.Inviting) { i.Prefix = "" }, identity.ErrOwnStore, "volplane migrate-store"},
		"the name of a node": {func(i *identity.Inviting) { i.Known = true }, identity.ErrKnown, "delete node two --lost"},
		"all of it": {
			func(i *identity.Inviting) { *i = identity.Inviting{Known: true} }, identity.ErrNotAdministrator, "system:masters",
		},
	} {
		i := may
		c.change(&i)
		err := i.Check()
		says(t, name, err, c.says)
		if !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
	}
	says(t, "a store that others reach", identity.CheckStore("/volplane/here"))
	says(t, "a store that was moved back", identity.CheckStore(""), "volplane migrate-store")
}

func TestInviteIsValid(t *testing.T) {
	plane := identity.KindControlPlane
	for _, c := range []struct {
		kind identity.Kind
		life time.Duration
		says []string
	}{
		{identity.KindNode, 30 * 24 * time.Hour, nil},
		{identity.KindNode, 30*24*time.Hour + time.Second, []string{"of a node", "720h"}},
		{identity.KindNode, 0, []string{"a second"}},
		{plane, time.Hour, nil},
		{plane, time.Hour + time.Second, []string{"of a control plane", "at most 1h"}},
		{plane, -time.Second, []string{"a second"}},
		{"node", time.Minute, []string{`kind "node"`}},
	} {
		err := identity.Invite{Kind: c.kind, Node: "n", Seconds: int64(c.life / time.Second)}.Validate()
		says(t, fmt.Sprintf("%s for %s", string(c.kind), c.life), err, c.says...)
	}
}

// TestKeysFit: a host that could not read what the others write, or the other way round, does not join.
func TestKeysFit(t *testing.T) {
	own := identity.Keys{Prefix: "/volplane/here", Encryption: []byte("sentinel-key")}
	config := identity.Keys{Prefix: "/volplane/here", ProviderConfig: "h1"}
	for name, c := range map[string]struct {
		keys identity.Keys
		host identity.Wanted
		says []string
	}{
		"volplane's own key": {own, identity.Wanted{}, nil},
		"the same file":      {config, identity.Wanted{ConfigFile: "/f", Config: "h1"}, nil},
		"no file":            {config, identity.Wanted{}, []string{"copy that file to this host"}},
		"another file":       {config, identity.Wanted{ConfigFile: "/f", Config: "h2"}, []string{"/f is not the file"}},
		"a file for none":    {own, identity.Wanted{ConfigFile: "/f", Config: "h1"}, []string{"omit --encryption"}},
		"another prefix": {
			own, identity.Wanted{Prefix: "/volplane/there"}, []string{"--etcd-prefix is /volplane/there", `"/volplane/here"`},
		},
		"no key": {identity.Keys{Prefix: "/volplane/here"}, identity.Wanted{}, []string{"the same version"}},
	} {
		c.host.From = "https://one:6771"
		if c.host.Prefix == "" {
			c.host.Prefix = "/volplane/here"
		}
		err := c.keys.Check(c.host)
		says(t, name, err, c.says...)
		if text := fmt.Sprintf("%v %+v %#v %s %v", c.keys, c.keys, c.keys, c.keys, err); strings.Contains(text, "sentinel") {
			t.Errorf("%s: a key is printed: %s", name, text)
		}
	}
}

// TestJoining: what a start with an invitation of a control plane does.
func TestJoining(t *testing.T) {
	fresh := identity.Joining{
		File: "/f", Invited: true, Kind: identity.KindControlPlane, Name: "two", Authority: "aaaaaaaaaaaaaa", DataDir: "/d",
		Store: true,
	}
	for name, c := range map[string]struct {
		change func(*identity.Joining)
		fetch  bool
		says   []string
	}{
		"for the first time": {func(*identity.Joining) {}, true, nil},
		"with its own name":  {func(j *identity.Joining) { j.Node = "two" }, true, nil},
		"again":              {func(j *identity.Joining) { j.Own = j.Authority }, false, nil},
		"again, after it was used": {
			func(j *identity.Joining) { j.Own, j.Used, j.Store = j.Authority, "/d/admin.kubeconfig", false }, false, nil,
		},
		"again, and the file is gone": {
			func(j *identity.Joining) { *j = identity.Joining{File: "/f", Gone: true, Own: "b", DataDir: "/d"} }, false, nil,
		},
		"no file": {
			func(j *identity.Joining) { *j = identity.Joining{File: "/f", Gone: true, DataDir: "/d", Store: true} }, false,
			[]string{"/f does not exist", "volplane invite --control-plane NAME"},
		},
		"another authority": {
			func(j *identity.Joining) { j.Own = "bbbbbbbbbbbbbb" }, false,
			[]string{"bbbbbbbbbbbb,", "aaaaaaaaaaaa:", "--data-dir"},
		},
		"another name": {
			func(j *identity.Joining) { j.Node = "three" }, false, []string{"invites two", "--name is three"},
		},
		"another name, joined": {
			func(j *identity.Joining) { j.Node, j.Own = "three", j.Authority }, false, []string{"invites two"},
		},
		"an invitation of a node": {
			func(j *identity.Joining) { j.Kind = identity.KindNode }, false,
			[]string{"invites node two", "volplane node --join /f"},
		},
		"another kubeconfig": {func(j *identity.Joining) { j.Invited = false }, false, []string{"/f is not an invitation"}},
		"an etcd of its own": {
			func(j *identity.Joining) { j.Etcd = "/d/etcd" }, false, []string{"/d has objects of its own, in /d/etcd"},
		},
		"an etcd of its own, and no file": {
			func(j *identity.Joining) { j.Etcd, j.Gone, j.Own = "/d/etcd", true, j.Authority }, false, []string{"/d/etcd"},
		},
		"a directory that was used": {
			func(j *identity.Joining) { j.Used = "/d/node/journal/v" }, false,
			[]string{"/d/node/journal/v exists", "--data-dir"},
		},
		"no store": {func(j *identity.Joining) { j.Store = false }, false, []string{"--join needs --etcd-servers"}},
	} {
		j := fresh
		c.change(&j)
		fetch, err := j.Fetch()
		says(t, name, err, c.says...)
		if fetch != c.fetch {
			t.Errorf("%s: fetches %v, want %v", name, fetch, c.fetch)
		}
	}
}

// TestSealed: no two invitations have the same text to seal.
func TestSealed(t *testing.T) {
	first := identity.Invitation{Kind: identity.KindControlPlane, Node: "n", Hash: "h", Expires: time.Unix(1, 0), Epoch: 1}
	all := map[string]bool{first.Sealed("i"): true, first.Sealed("j"): true}
	for _, change := range []func(*identity.Invitation){
		func(i *identity.Invitation) { i.Kind = identity.KindNode },
		func(i *identity.Invitation) { i.Node = "m" },
		func(i *identity.Invitation) { i.Hash = "g" },
		func(i *identity.Invitation) { i.Expires = time.Unix(2, 0) },
		func(i *identity.Invitation) { i.Epoch = 2 },
		func(i *identity.Invitation) { i.Key = "k" },
	} {
		i := first
		change(&i)
		all[i.Sealed("i")] = true
	}
	if len(all) != 8 {
		t.Errorf("%d different texts, want 8", len(all))
	}
	again := first
	again.Seal, again.Expires = "s", first.Expires.In(time.FixedZone("z", 3600))
	if again.Sealed("i") != first.Sealed("i") {
		t.Error("the same invitation has another text when it is read")
	}
}
