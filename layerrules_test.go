package volplane_test

import "slices"

// rule says what packages may not import. The paths in it are those of packages; one that ends in a slash means all
// packages below that folder.
type rule struct {
	// of are the packages that the rule is for, except but.
	of, but []string
	// only are the packages of this repository that they may import; nil means any that never does not have.
	only []string
	// never are packages that they do not import. What is in other modules they do not even reach.
	never []string
	// because is printed with a violation, and in docs/reference/layers.md.
	because string
}

const (
	clientGo      = "k8s.io/client-go"
	grpc          = "google.golang.org/grpc"
	apiServer     = "k8s.io/apiserver"
	anyInternal   = "internal/"
	decidePrefix  = "internal/decide/"
	explainPrefix = "internal/explain/"
)

// deeds are packages that act, or read what is not an argument.
func deeds() []string {
	return []string{
		"context", "os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand",
		clientGo, grpc, apiServer,
	}
}

// forTests are packages that only tests import.
func forTests() []string {
	return []string{
		"internal/csi/csitest", "internal/kube/kubetest", "internal/controller/story", "internal/explain/why/whytest",
		"internal/doors/users/userstest", "internal/gather/gathertest", "internal/durable/durabletest", "internal/testkit",
		"internal/testkit/", "standalone/standalonetest",
	}
}

// annexes are what the core can do without: FlexVolumes, drivers that a host runs, what authors of drivers use, and
// doors for other programs.
func annexes() []string {
	return []string{
		"internal/flex", "internal/flex/", "internal/decide/flex", "internal/hosting/", "internal/workshop/",
		"internal/doors", "internal/doors/",
	}
}

// rules returns the table, from words up to programs. All rules for a package hold.
func rules() []rule {
	return slices.Concat(wordRules(), coreRules(), annexRules(), programRules())
}

// wordRules are about words, what speaks to one side, decisions and explanations.
func wordRules() []rule {
	return []rule{
		{
			of: []string{
				"internal/volume", "internal/process/redact", "internal/workshop/finding", "internal/sidecar",
				"internal/sidecar/manifest", "internal/process/queue", "internal/mount", "internal/mount/", "internal/durable",
				"internal/process/socket", "internal/process/healthz", "internal/process/lifecycle",
				"internal/workshop/skeleton", "internal/process/revision", "internal/process/sdnotify",
			},
			only: []string{}, never: []string{clientGo, grpc}, because: "the ground floor knows nothing else of this repository",
		},
		{
			of: []string{
				"internal/volume", "internal/cluster", "internal/workshop/finding", "internal/sidecar/manifest",
				decidePrefix, explainPrefix,
			},
			but: forTests(), never: append(deeds(), "sync"),
			because: "words, decisions and explanations are functions of their arguments",
		},
		{of: []string{"internal/process/redact"}, never: deeds(), because: "texts are functions of texts"},
		{
			of: []string{
				"internal/volume", "internal/process/redact", "internal/process/queue", "internal/sidecar/nodesidecar",
			},
			never: []string{"k8s.io/api", "k8s.io/apimachinery"}, because: "knows no object of Kubernetes",
		},
		{
			of:   []string{"internal/cluster", "internal/kube"},
			only: []string{"internal/volume", "internal/cluster"}, because: "objects, and the client that reads and writes them",
		},
		{
			of: []string{"internal/csi", "internal/csi/"}, but: forTests(),
			only: []string{
				"internal/volume", "internal/process/redact", "internal/process/socket", "internal/csi", "internal/csi/registrar",
			},
			never: []string{clientGo}, because: "speaks to drivers, and knows no cluster",
		},
		{
			of: []string{decidePrefix},
			only: []string{
				"internal/volume", "internal/process/redact", "internal/cluster", "internal/workshop/finding",
				"internal/sidecar", decidePrefix,
			},
			because: "a decision knows neither who applies it nor who explains it",
		},
		{
			of: []string{explainPrefix}, but: forTests(),
			only:    []string{"internal/volume", "internal/process/redact", "internal/cluster", decidePrefix, explainPrefix},
			because: "an explanation reads objects and calls decisions",
		},
		{
			of: []string{explainPrefix}, but: append(forTests(), "internal/explain/survey", "internal/explain/why"),
			never:   []string{"internal/explain/why", "internal/explain/survey"},
			because: "what judges one thing does not import what joins the judgements",
		},
	}
}

// coreRules are about what acts on each volume.
func coreRules() []rule {
	return []rule{
		{
			of: []string{"internal/controller/"}, but: forTests(),
			only: []string{
				"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/kube", "internal/process/queue",
				"internal/controller", "internal/controller/contents",
			},
			never: []string{"os/exec"}, because: "a controller does not import another controller, and touches no host",
		},
		{
			of: []string{"internal/controller"},
			only: []string{
				"internal/volume", "internal/csi", "internal/decide/retry", "internal/kube", "internal/process/queue",
			},
			because: "what all controllers share knows none of them",
		},
		{
			of: []string{"internal/node", "internal/node/"},
			only: []string{
				"internal/volume", "internal/process/redact", "internal/cluster", decidePrefix, "internal/csi",
				"internal/durable", "internal/kube", "internal/mount", "internal/mount/", "internal/process/queue",
				"internal/process/lifecycle", "internal/process/noderoot", "internal/node/",
			},
			because: "the node agent meets controllers through the API, and drivers through their sockets",
		},
		{
			of: []string{"internal/hosting/local"},
			only: []string{
				"internal/volume", "internal/durable", "internal/mount", "internal/process/socket", "internal/csi",
				"internal/csi/registrar",
			},
			never: []string{clientGo}, because: "the bundled driver is reached over its socket, as any other",
		},
		{
			of: []string{"internal/"},
			but: slices.Concat(annexes(), forTests(), []string{
				"internal/decide/driverstatus", "internal/decide/migrate", "internal/explain/", "internal/gather",
				"internal/app", "internal/app/", "internal/cli", "internal/cli/",
			}),
			never: annexes(), because: "the core knows no annex",
		},
	}
}

// annexRules are about what stands beside the core.
func annexRules() []rule {
	return []rule{
		{
			of: []string{"internal/flex", "internal/flex/"},
			never: []string{
				"internal/controller", "internal/controller/", "internal/node", "internal/node/", "internal/doors",
				"internal/doors/", "internal/hosting/local", "internal/hosting/supervise", "internal/hosting/driverhost",
			},
			because: "FlexVolume drivers are served as CSI drivers, for which nothing else has to change",
		},
		{
			of:    []string{"internal/", "cmd/", "standalone/"},
			but:   []string{"internal/flex", "internal/flex/", "internal/cli/", "internal/app"},
			never: []string{"internal/flex/"}, because: "only verbs and roles are about FlexVolume drivers",
		},
		{
			of: []string{
				"internal/hosting/", "internal/workshop/", "internal/process/noderoot",
			},
			never: []string{
				clientGo, "internal/kube", "internal/cluster", "internal/controller", "internal/controller/", "internal/node",
				"internal/node/", "internal/flex", "internal/flex/",
			},
			because: "drivers, and what runs and examines them, know no cluster",
		},
		{
			of: []string{"internal/doors", "internal/doors/"}, but: forTests(),
			only: []string{
				"internal/volume", "internal/cluster", decidePrefix, "internal/kube", "internal/durable", "internal/mount",
				"internal/process/socket", "internal/process/options", "internal/doors", "internal/doors/users",
			},
			because: "a door uses claims through the API, and meets neither a controller nor a driver",
		},
		{
			of:    []string{"internal/sidecar/nodesidecar", "internal/process/healthz", "cmd/volplane-node-sidecars"},
			never: []string{clientGo, "internal/kube"}, because: "small programs stay small",
		},
	}
}

// programRules are about what joins the parts, and about the heavy module.
func programRules() []rule {
	return []rule{
		{
			of:      []string{"internal/", "cmd/"},
			never:   []string{apiServer, "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"},
			because: "the API server and etcd are linked by standalone/ only",
		},
		{
			of: []string{"internal/", "standalone/"}, but: []string{"standalone/up"},
			never: []string{"internal/app"}, because: "internal/app joins parts to roles, and only programs import it",
		},
		{
			of: []string{"internal/cli", "internal/cli/"},
			never: []string{
				"internal/controller", "internal/controller/", "internal/node", "internal/node/", "internal/hosting/local",
				"internal/hosting/driverhost",
			},
			because: "the command line is a client of the API, and is given the roles that run for long",
		},
		{
			of: []string{"internal/cli/"},
			never: []string{
				"internal/cli/apply", "internal/cli/cluster", "internal/cli/demo", "internal/cli/driver",
				"internal/cli/flex", "internal/cli/get", "internal/cli/host", "internal/cli/status", "internal/cli/volume",
				"internal/cli/why",
			},
			because: "a topic of verbs does not import another one",
		},
		{
			of:   []string{"cmd/kubectl-why_volume"},
			only: []string{"internal/cli/shell", "internal/cli/why"}, because: "main is boring",
		},
		{
			of: []string{
				"standalone/apiserver", "standalone/apiserver/", "standalone/backup", "standalone/datadir",
				"standalone/etcd", "standalone/external", "standalone/garbage", "standalone/pki", "standalone/progress",
			},
			only:    []string{"internal/volume", "internal/durable", "internal/mount", decidePrefix, "standalone/"},
			never:   []string{"standalone/up", "standalone/page"},
			because: "the API server and its store know no controller, no node agent and no driver",
		},
		{
			of: []string{"standalone/page"},
			only: []string{
				"internal/volume", "internal/cluster", decidePrefix, explainPrefix, "internal/gather", "internal/gather/",
				"internal/process/options",
			},
			because: "the page arranges what others answer, and writes nothing",
		},
		{
			of: []string{"standalone/up"},
			never: []string{
				"internal/controller", "internal/controller/", "internal/node", "internal/node/", "internal/hosting/local",
				"internal/doors", "internal/doors/",
			},
			because: "knows roles, not their parts",
		},
		{
			of: []string{"internal/", "cmd/", "standalone/"}, but: forTests(), never: forTests(), because: "for tests only",
		},
	}
}
