package external_test

import (
	"strings"
	"testing"

	"volplane.dev/volplane/standalone/external"
)

// TestValidate: incomplete and invalid flags are refused with the name of the flag.
func TestValidate(t *testing.T) {
	t.Parallel()
	whole := func(change func(*external.Options)) external.Options {
		o := external.Options{
			Servers: []string{"https://10.0.0.1:2379", "https://etcd-2.lan:2379"}, Prefix: "/volplane/here",
			CAFile: "/etc/ca.crt", CertFile: "/etc/c.crt", KeyFile: "/etc/c.key",
		}
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		change func(*external.Options)
		says   string
	}{
		"all of them":           {func(*external.Options) {}, ""},
		"no client certificate": {func(o *external.Options) { o.CertFile, o.KeyFile = "", "" }, ""},
		"this host without encryption": {func(o *external.Options) {
			*o = external.Options{Servers: []string{"http://127.0.0.1:2379"}, Prefix: "/volplane/here"}
		}, ""},
		"no servers":      {func(o *external.Options) { o.Servers = nil }, "--etcd-servers, which is missing"},
		"no prefix":       {func(o *external.Options) { o.Prefix = "" }, "needs --etcd-prefix"},
		"no authority":    {func(o *external.Options) { o.CAFile = "" }, "needs --etcd-cafile"},
		"no key":          {func(o *external.Options) { o.KeyFile = "" }, "--etcd-keyfile belong together"},
		"no certificate":  {func(o *external.Options) { o.CertFile = "" }, "--etcd-certfile and"},
		"a relative path": {func(o *external.Options) { o.CAFile = "ca.crt" }, `"ca.crt" of --etcd-cafile`},
		"Kubernetes' own": {func(o *external.Options) { o.Prefix = "/registry" }, "is that of Kubernetes"},
		"below it":        {func(o *external.Options) { o.Prefix = "/registry/x" }, "is that of Kubernetes"},
		"the root":        {func(o *external.Options) { o.Prefix = "/" }, "is not a path such as"},
		"no path":         {func(o *external.Options) { o.Prefix = "volplane" }, "is not a path such as"},
		"a hidden prefix": {func(o *external.Options) { o.Prefix = "/volplane/.volplane" }, "is not a path such as"},
		"a long prefix":   {func(o *external.Options) { o.Prefix = "/" + strings.Repeat("x", 200) }, "at most 200 bytes"},
		"no port":         {func(o *external.Options) { o.Servers[0] = "https://10.0.0.1" }, "has no port"},
		"a host":          {func(o *external.Options) { o.Servers[0] = "10.0.0.1:2379" }, "is not a URL"},
		"a password":      {func(o *external.Options) { o.Servers[0] = "https://a:b@10.0.0.1:2379" }, "has more than"},
		"a path":          {func(o *external.Options) { o.Servers[0] += "/x" }, "has more than"},
		"another scheme":  {func(o *external.Options) { o.Servers[0] = "unix://x:1" }, "is not a URL"},
		"mixed":           {func(o *external.Options) { o.Servers[1] = "http://127.0.0.1:1" }, "as the first one is"},
		"in clear": {func(o *external.Options) {
			*o = external.Options{Servers: []string{"http://10.0.0.1:2379"}, Prefix: "/volplane/here"}
		}, "without encryption"},
		"an authority without TLS": {func(o *external.Options) { o.Servers = []string{"http://127.0.0.1:1"} }, "without TLS"},
		"too many servers": {func(o *external.Options) {
			for len(o.Servers) < 33 {
				o.Servers = append(o.Servers, "https://10.0.0.1:2379")
			}
		}, "33 addresses"},
	} {
		err := whole(c.change).Validate()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
	if !(external.Options{}).IsZero() || whole(func(*external.Options) {}).IsZero() {
		t.Error("no store is named only by no option")
	}
}
