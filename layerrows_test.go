package volplane_test

import "slices"

// layer is what the packages below a prefix may import of this repository, and
// what they may never import of others.
type layer struct {
	prefix string
	// may are prefixes of packages of this repository.
	may []string
	// never are packages that may not be imported directly (of the standard
	// library: everything imports them indirectly), or modules, which have a
	// dot in their first element and may not be reached at all.
	never []string
	// reason is printed with a violation.
	reason string
}

const (
	clientGo      = "k8s.io/client-go"
	grpc          = "google.golang.org/grpc"
	apiServer     = "k8s.io/apiserver"
	kubernetes    = "k8s.io/kubernetes"
	etcdServer    = "go.etcd.io/etcd/server/v3"
	anyInternal   = "internal/"
	decidePrefix  = "internal/decide/"
	explainPrefix = "internal/explain/"
	forTests      = "for tests only"
)

// doorLayers are the rows of what asks the API, and of what uses claims for those outside of Kubernetes.
func doorLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/door/mount8", []string{
			"internal/door", decidePrefix, "internal/mount", "internal/volume",
		}, heavy, "what mount(8) asks of a claim, and what it is told"},
		{"internal/door/docker", []string{
			"internal/volume", "internal/cluster", "internal/decide/references", "internal/door", "internal/door/users",
			"internal/durable", "internal/kube", "internal/mount", "internal/program", "internal/socket",
		}, heavy, "knows what engines count, and how they ask"},
		{"internal/door/storageprovider", []string{
			"internal/cluster", "internal/door", "internal/door/users", "internal/durable", "internal/kube", "internal/mount",
			"internal/program", "internal/socket", "internal/volume",
		}, heavy, "hands out what is mounted, and is never told that it is given back"},
		{"internal/door/users/userstest", []string{
			"internal/volume", "internal/door", "internal/door/users", "internal/kube/kubetest", "internal/mount",
			"internal/testkit/golden",
		}, heavy, forTests},
		{"internal/door/users", []string{
			"internal/volume", "internal/cluster", "internal/decide/references", "internal/door", "internal/kube",
			"internal/mount",
		}, heavy, "keeps what is said of users, and asks the kernel who is right"},
		{"internal/gather/gathertest", nil, heavy, forTests},
		{"internal/gather", []string{
			"internal/volume", "internal/cluster", decidePrefix, explainPrefix, "internal/kube",
		}, heavy, "reads the facts of answers, and answers nothing itself"},
		{"internal/door", []string{
			"internal/volume", "internal/cluster", "internal/decide/mount", "internal/kube",
		}, heavy, "uses claims through the API, and meets no controller and no driver"},
	}
}

// layers returns the table. The first row whose prefix is the package or a
// folder above it is the package's row.
func layers() []layer {
	return slices.Concat(explainingLayers(), lowerLayers(), flexLayers(), driverLayers(), sidecarLayers(), doorLayers(),
		upperLayers(), cliLayers(), programLayers())
}

// deeds are packages that act, or look at what no argument is.
func deeds() []string {
	return []string{
		"context", "os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand",
		clientGo, grpc, apiServer,
	}
}

// explainingLayers are the rows of the packages that explain: one that judges a single thing does not import one that
// joins the judgements.
func explainingLayers() []layer {
	pure := append(deeds(), "sync")
	return []layer{
		{"internal/explain/chain", []string{"internal/volume"}, pure, "what an explanation is made " +
			"of, not how it is found"},
		{"internal/explain/foreign", nil, pure, "reads sentences, and knows nothing of what they are about"},
		{"internal/explain/state", []string{
			"internal/volume", "internal/cluster", "internal/decide/provision", "internal/explain/foreign",
		}, pure, "what was read, not what it means"},
		{"internal/explain/why/whytest", []string{
			"internal/volume", "internal/cluster", "internal/testkit/golden", decidePrefix, explainPrefix,
		}, pure, "for tests only"},
		{"internal/explain/statefile", []string{
			"internal/volume", "internal/redact", "internal/decide/provision", "internal/explain/state",
		}, pure, "what a file may hold, not what it says"},
		{"internal/explain/subject", []string{
			"internal/cluster", "internal/explain/chain",
		}, pure, "names of objects, not what is wrong with them"},
		{"internal/explain/fix", []string{
			"internal/volume", "internal/cluster", "internal/explain/chain", "internal/decide/nodelife",
			"internal/decide/note", "internal/explain/state", "internal/explain/subject",
		}, pure, "reads an explanation, and makes none"},
		{"internal/explain/since", []string{
			"internal/volume", "internal/cluster", "internal/decide/provision", "internal/decide/retry",
			"internal/explain/chain", "internal/explain/state", "internal/explain/subject",
		}, pure, "reads an explanation, and makes none"},
		{"internal/explain/drivers", []string{
			"internal/volume", "internal/cluster", "internal/decide/note", "internal/decide/planes",
		}, pure, "which drivers are where, not what waits for them"},
		{"internal/explain/lease", []string{
			"internal/volume", "internal/cluster", "internal/decide/election", "internal/decide/planes",
			"internal/explain/chain",
		}, pure, "who lives, not what is decided"},
		{"internal/explain/kubelet", []string{
			"internal/volume", "internal/cluster", "internal/explain/chain", "internal/explain/state",
			"internal/explain/drivers", "internal/explain/foreign", "internal/decide/note", "internal/decide/attach",
			"internal/decide/mount",
		}, pure, "what a kubelet says, not what waits for it"},
		{"internal/explain/scheduling", []string{
			"internal/volume", "internal/cluster", "internal/explain/chain", "internal/explain/state",
			"internal/explain/drivers", "internal/decide/bind", "internal/decide/capacity", "internal/decide/topology",
		}, pure, "what is said of Pods without a node, or on a wrong one"},
		{"internal/explain/dryrun", []string{
			"internal/volume", "internal/cluster", "internal/decide/bind", "internal/explain/chain",
			"internal/explain/state",
		}, pure, "foretells what the binder does, and explains nothing"},
		{"internal/explain/force", []string{
			"internal/volume", "internal/cluster", "internal/explain/chain", "internal/explain/state",
			"internal/decide/attach", "internal/explain/foreign", "internal/decide/nodelife",
		}, pure, "tells when it happens, and never does it"},
		{"internal/explain/survey", []string{
			"internal/volume", "internal/cluster", "internal/decide/attach", "internal/decide/bind",
			"internal/explain/chain", "internal/explain/drivers", "internal/decide/health", "internal/decide/nodelife",
			"internal/decide/note", "internal/decide/provision", "internal/explain/since", "internal/explain/state",
			"internal/explain/why",
		}, pure, "asks the walk about each object"},
		{"internal/explain/why", []string{
			"internal/volume", "internal/cluster", "internal/decide/attach", "internal/decide/bind",
			"internal/explain/chain", "internal/explain/drivers", "internal/explain/force", "internal/explain/foreign",
			"internal/explain/kubelet", "internal/explain/lease",
			"internal/decide/migrate", "internal/decide/modify", "internal/decide/note",
			"internal/decide/health", "internal/decide/placement",
			"internal/decide/protect", "internal/decide/provision", "internal/decide/resize", "internal/decide/snapshot",
			"internal/decide/groupsnapshot",
			"internal/explain/scheduling", "internal/explain/state",
		}, pure, "asks the decisions, and knows nobody who reads its answer"},
	}
}

// lowerLayers are the rows of words, decisions and what speaks to one side only.
func lowerLayers() []layer {
	deeds := deeds()
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/volume", nil, append(deeds, "time", "k8s.io/api", "k8s.io/apimachinery"), "words, not deeds"},
		{"internal/decide/takeover", []string{
			"internal/sidecar", "internal/volume",
		}, append(deeds, "sync"), "reads what sidecars are told, and asks no cluster"},
		{"internal/finding", nil, append(deeds, "sync", "time"), "what checks tell, not what they check"},
		{"internal/scratch", []string{
			"internal/finding", "internal/mount",
		}, append(heavy, clientGo, grpc), "directories in which drivers are tried out, whatever tries them"},
		{"internal/redact", nil, append(deeds, "k8s.io/api", "k8s.io/apimachinery"), "texts, not deeds"},
		{"internal/cluster", []string{"internal/volume"}, append(deeds, "sync", "time"), "what is looked up, not how " +
			"it came here"},
		{decidePrefix, []string{
			"internal/volume", "internal/redact", "internal/cluster", "internal/finding", decidePrefix,
		}, append(deeds, "sync"), "decisions are functions of their arguments, and know nobody who explains them"},
		{"internal/csi", []string{
			"internal/volume", "internal/redact", "internal/socket", "internal/csi", "internal/csi/registrar",
		}, append(heavy, clientGo), "speaks to drivers only"},
		{"internal/manifest", nil, append(deeds, "sync", "time"), "manifests are functions of their arguments"},
		{"internal/durable/durabletest", []string{"internal/durable"}, append(heavy, clientGo, grpc), forTests},
		{"internal/durable", nil, append(heavy, clientGo, grpc), "speaks to the disk only"},
		{"internal/queue", nil, append(heavy, clientGo, grpc, "k8s.io/api", "k8s.io/apimachinery"), "decides when keys are " +
			"processed, whatever they name"},
		{"internal/mount", nil, append(heavy, clientGo, grpc), "speaks to the kernel only"},
		{"internal/supervise", []string{
			"internal/durable", "internal/queue", "internal/redact",
		}, append(heavy, clientGo, grpc), "keeps programs running, whatever they are"},
		{"internal/kube/kubetest", []string{
			"internal/volume", "internal/cluster", "internal/kube", "internal/kube/kubetest", "internal/controller",
			"internal/testkit",
		}, heavy, forTests},
		{"internal/kube", []string{"internal/volume", "internal/cluster"}, heavy, "a client, whoever the server is"},
		{"internal/node/uses", []string{
			"internal/volume", "internal/cluster", decidePrefix,
		}, append(deeds[1:], "sync"), "reads what it is given, and says what a Pod wants where"},
		{"internal/identity", []string{
			"internal/volume", "internal/durable", "internal/queue", decidePrefix,
		}, append(heavy, grpc), "speaks to the API server and the disk only"},
	}
}

// flexLayers are the rows of what is about FlexVolume drivers.
func flexLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/flex/bridge", []string{
			"internal/volume", "internal/socket", "internal/redact", "internal/durable", decidePrefix, "internal/mount",
			"internal/mount/", "internal/csi", "internal/csi/registrar", "internal/flex/driver", "internal/flex/host",
		}, append(heavy, clientGo), "serves scripts over sockets and knows no cluster"},
		{"internal/flex/install", []string{
			"internal/durable", decidePrefix, "internal/mount", "internal/flex/check", "internal/flex/host", "internal/skeleton",
		}, append(heavy, clientGo, grpc), "puts files in their place, beside any host"},
		{"internal/flex/doctor", []string{
			"internal/redact", decidePrefix, "internal/mount", "internal/scratch", "internal/flex/check",
			"internal/flex/driver", "internal/flex/host",
		}, append(heavy, clientGo, grpc), "judges a script by the host's own calls"},
		{"internal/flex/check", []string{
			decidePrefix, "internal/flex/driver",
		}, append(heavy, clientGo, grpc), "calls init of a script, and nothing that needs a volume"},
		{"internal/flex/host", []string{
			"internal/volume", "internal/durable", decidePrefix, "internal/flex/driver",
		}, append(heavy, clientGo, grpc), "finds scripts and calls none but by a driver"},
		{"internal/flex/driver", []string{
			"internal/volume", "internal/redact", "internal/durable", decidePrefix, "internal/mount",
		}, append(heavy, clientGo, grpc), "speaks to scripts and the kernel only"},
		{"internal/flex/migrate", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/explain/state", "internal/queue",
		}, append(heavy, "os/exec"), "works on objects only, wherever it runs"},
		{"internal/flex", []string{
			"internal/volume", decidePrefix, "internal/csi", "internal/explain/state", "internal/kube", "internal/parts",
			"internal/flex/",
		}, heavy, "the only door to what is about FlexVolume drivers"},
	}
}

// driverLayers are the rows of drivers and of what runs them on a host.
func driverLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/driver/doctor", []string{
			"internal/csi", "internal/driverfile", "internal/finding", "internal/mount", "internal/redact", "internal/scratch",
		}, append(heavy, clientGo), "judges any driver over its socket, the bundled one like others"},
		{"internal/driver/starter", []string{
			"internal/csi", "internal/skeleton",
		}, append(heavy, clientGo), "writes a driver, and runs none"},
		{"internal/driver/local", []string{
			"internal/volume", "internal/socket", "internal/durable", "internal/mount", "internal/csi", "internal/csi/registrar",
		}, append(heavy, clientGo), "a real driver is reached over its socket and knows no cluster"},
		{"internal/driverfile", []string{
			"internal/volume", "internal/durable", "internal/csi",
		}, append(heavy, clientGo), "says which drivers a host runs, whoever runs them"},
		{"internal/driverimport", []string{
			"internal/volume", "internal/driverfile",
		}, append(heavy, clientGo, "os", "os/exec", "net", "context"), "reads what it is given, and touches no host"},
		{"internal/driverhost", []string{
			"internal/csi", "internal/csi/registrar", "internal/driverfile", "internal/durable", "internal/queue",
			"internal/supervise",
		}, append(heavy, clientGo), "runs drivers for whoever tells it of Secrets and failures"},
	}
}

// sidecarLayers are the rows of what takes the place of upstream's sidecars, without the controllers.
func sidecarLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/healthz", nil, append(heavy, clientGo, grpc), "answers over HTTP, whatever is asked for"},
		{"internal/beside", []string{
			"internal/volume", "internal/csi", "internal/csi/registrar", "internal/healthz", "internal/parts",
			"internal/sidecar",
		}, append(heavy, clientGo, "k8s.io/api", "k8s.io/apimachinery"), "small programs stay small"},
		{"cmd/volplane-node-sidecars", []string{"internal/beside"}, append(heavy, clientGo), "main is boring"},
		{"internal/snapshotmetadata", []string{
			"internal/cluster", "internal/csi", "internal/decide/snapshot", "internal/kube", "internal/redact",
			"internal/sidecar", "internal/volume",
		}, heavy, "trusts neither clients nor drivers, and keeps nothing"},
		{"internal/sidecar", nil, append(heavy, clientGo, grpc), "words of upstream's programs, whoever runs them"},
	}
}

// upperLayers are the rows of what acts, and of what joins it.
func upperLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/controller/story", []string{
			"internal/volume", "internal/cluster", "internal/csi", "internal/csi/csitest", "internal/kube/kubetest",
			"internal/controller",
		}, heavy, forTests},
		{"internal/controller/contents", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/kube", "internal/controller",
		}, append(heavy, "os/exec"), "makes calls about contents of any kind, and knows no kind"},
		{"internal/controller/", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/kube", "internal/queue",
			"internal/controller", "internal/controller/contents",
		}, append(heavy, "os/exec"), "a controller never imports another controller and touches no host"},
		{"internal/controller", []string{
			"internal/volume", "internal/csi", "internal/decide/retry", "internal/kube", "internal/queue",
		}, append(heavy, "os/exec"), "what all controllers share knows none of them"},
		{"internal/node/registration", []string{"internal/csi", "internal/queue"}, heavy, "finds drivers by their sockets"},
		{"internal/node/identity", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/kube", "internal/queue",
			"internal/node/registration",
		}, heavy, "what the cluster knows of the node, whatever is mounted there"},
		{"internal/node/health", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/mount", "internal/kube",
			"internal/node/journal", "internal/redact",
		}, heavy, "looks at mounted volumes, whoever mounts them"},
		{"internal/node/leftovers", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/mount", "internal/kube", "internal/node/journal",
			"internal/node/uses",
		}, heavy, "finds what is mounted and not recorded, before anybody mounts"},
		{"internal/node/journal", []string{
			"internal/durable", decidePrefix,
		}, append(heavy, clientGo, grpc), "keeps what must survive, and acts on nothing"},
		{"internal/node/volumes", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/mount", "internal/mount/",
			"internal/kube", "internal/queue", "internal/node/journal", "internal/node/uses", "internal/node/identity",
		}, heavy, "tells Pods what becomes of their volumes through a face of its own"},
		{"internal/node/pods", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/kube", "internal/queue", "internal/node/journal",
			"internal/node/uses", "internal/node/volumes", "internal/node/health",
		}, heavy, "tells Pods what other rooms know, and mounts nothing"},
		{"internal/node", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/csi", "internal/durable", "internal/mount",
			"internal/kube", "internal/parts", "internal/node/", "internal/noderoot",
		}, heavy, "the node agent meets controllers through the API only"},
		{"internal/socket", nil, append(heavy, clientGo, grpc), "makes sockets, whoever answers"},
		{"internal/skeleton", nil, append(heavy, clientGo, grpc), "writes files, whatever is in them"},
		{"internal/parts", nil, append(heavy, clientGo, grpc), "runs what it is given"},
		{"internal/sdnotify", nil, append(heavy, clientGo, grpc), "tells how a service is, whatever it does"},
		{"internal/testkit", nil, append(heavy, clientGo), forTests},
		{"internal/orphans", []string{
			"internal/volume", decidePrefix, "internal/csi", "internal/kube",
		}, append(heavy, "os/exec"), "reads drivers and objects, wherever it runs"},
		{"internal/noderoot", []string{"internal/durable"}, append(heavy, clientGo, grpc), "knows whose a directory is, " +
			"not what is in it"},
		{"internal/program", []string{
			"internal/csi", "internal/observe", "internal/sidecar",
		}, heavy, "words of programs, which it does not run"},
		{"internal/revision", nil, append(heavy, clientGo, grpc), "what the build says of the source"},
		{"internal/observe", []string{"internal/revision"}, append(heavy, grpc), "counts what it is told, and serves it"},
		{"internal/app", []string{
			"internal/volume", "internal/cluster", decidePrefix, "internal/explain/chain", "internal/explain/since",
			"internal/explain/state", "internal/explain/survey", "internal/explain/why", "internal/csi",
			"internal/kube", "internal/controller", "internal/controller/", "internal/node",
			"internal/driver/local", "internal/flex", "internal/manifest", "internal/mount", "internal/observe",
			"internal/orphans", "internal/parts", "internal/program", "internal/driverfile", "internal/driverhost",
			"internal/beside", "internal/sidecar", "internal/door/", "internal/gather", "internal/snapshotmetadata",
		}, heavy, "the only place that joins parts stays thin"},
	}
}

// cliLayers are the rows of the verbs, by topic: no topic imports another one.
func cliLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"internal/cli/demo", []string{
			"internal/cli/shell", "internal/door", "internal/mount", "internal/volume", explainPrefix,
		}, heavy, "a user of the other verbs, and looks whether they are right"},
		{"internal/cli/volume", []string{
			"internal/cli/objects", "internal/cli/shell", "internal/cluster", "internal/door", "internal/door/mount8",
			"internal/gather", "internal/kube", "internal/orphans", "internal/program", "internal/volume", decidePrefix,
		}, heavy, "a client of the API like any other, which asks drivers only what they have"},
		{"internal/cli/get", []string{
			"internal/cli/objects", "internal/cli/shell", "internal/cluster", "internal/kube", "internal/volume",
			explainPrefix,
		}, heavy, "shows objects, and changes none"},
		{"internal/cli/apply", []string{
			"internal/cli/objects", "internal/cli/shell", "internal/door", "internal/gather", "internal/kube",
			"internal/noderoot", "internal/volume", decidePrefix, explainPrefix,
		}, heavy, "changes objects of any type"},
		{"internal/cli/why", []string{
			"internal/cli/objects", "internal/cli/shell", "internal/cluster", "internal/door", "internal/gather",
			"internal/kube", "internal/volume", decidePrefix, explainPrefix,
		}, heavy, "explains, and changes nothing; also where there is no volplane"},
		{"internal/cli/status", []string{
			"internal/cli/shell", "internal/gather", "internal/program", "internal/volume", decidePrefix, explainPrefix,
		}, heavy, "shows everything in one view, and changes nothing"},
		{"internal/cli/cluster", []string{
			"internal/cli/shell", "internal/gather", "internal/kube", "internal/manifest", "internal/program",
			"internal/sidecar", "internal/volume", decidePrefix,
		}, heavy, "hands roles of a cluster their options, and prints manifests"},
		{"internal/cli/host", []string{
			"internal/cli/shell", "internal/identity", "internal/program", "internal/sidecar", decidePrefix,
		}, heavy, "hands programs of a host their options"},
		{"internal/cli/driver", []string{
			"internal/cli/objects", "internal/cli/shell", "internal/cluster", "internal/csi", "internal/csi/recording",
			"internal/csi/registrar", "internal/csi/trace", "internal/door", "internal/driver/doctor",
			"internal/driver/starter", "internal/driverfile", "internal/driverimport", "internal/finding",
			"internal/gather", "internal/kube", "internal/noderoot", "internal/program", "internal/redact",
			"internal/supervise", "internal/volume", decidePrefix, explainPrefix,
		}, heavy, "the drivers of this host, by their files, their sockets and the API"},
		{"internal/cli/flex", []string{
			"internal/cli/shell", "internal/door", "internal/flex", "internal/flex/migrate", "internal/manifest",
			"internal/program", "internal/volume", decidePrefix,
		}, heavy, "the verbs of FlexVolume drivers"},
		{"internal/cli/objects", []string{
			"internal/cli/shell", "internal/gather",
		}, heavy, "objects of any type, whatever is done with them"},
		{"internal/cli/shell", []string{
			"internal/door", "internal/finding", "internal/flex", "internal/flex/migrate", "internal/gather",
			"internal/identity", "internal/kube", "internal/noderoot", "internal/orphans", "internal/program",
			"internal/redact", "internal/sidecar", "internal/volume", decidePrefix, explainPrefix,
		}, heavy, "what all verbs share, and no verb"},
		{"internal/cli", []string{
			"internal/cli/", "internal/door/mount8", "internal/revision", "internal/sidecar",
		}, heavy, "joins the verbs, and is given the roles that run for long"},
	}
}

// programLayers are the rows of the programs that do everything.
func programLayers() []layer {
	heavy := []string{apiServer, kubernetes, etcdServer}
	return []layer{
		{"cmd/volplane", []string{
			"internal/cli", "internal/app", "internal/flex", "internal/parts", "internal/csi", "internal/csi/trace",
			"internal/program", "internal/noderoot", "internal/sdnotify", "internal/supervise",
		}, heavy, "main is boring"},
		{"cmd/kubectl-why_volume", []string{"internal/cli/shell", "internal/cli/why"}, heavy, "main is boring"},
	}
}

// standaloneLayers is the same for the heavy module, over direct imports.
func standaloneLayers() []layer {
	return []layer{
		{"standalone/up", []string{
			"standalone/apiserver", "standalone/backup", "standalone/datadir", "standalone/external", "standalone/garbage",
			"standalone/page", "standalone/pki", "internal/app", "internal/durable", "internal/identity",
			"internal/flex", "internal/mount", "internal/noderoot", "internal/observe", "internal/parts", "internal/program",
			"internal/csi", "internal/csi/trace", "internal/sdnotify", "internal/volume", decidePrefix,
		}, nil, "knows roles, not their parts"},
		{"standalone/cmd/", []string{
			"standalone/up", "standalone/backup", "standalone/external", "internal/program", "internal/revision",
			"internal/sidecar", "internal/supervise",
		}, nil, "main is boring"},
		{"standalone/apiserver/guard", []string{"internal/volume", "internal/decide/flex"}, nil, "asks for rights, and " +
			"knows what the names of drivers mean"},
		{"standalone/apiserver/", []string{
			"standalone/pki", "internal/volume", "internal/durable", decidePrefix,
		}, nil, "a part of the API server that stands by itself"},
		{"standalone/apiserver", []string{
			"standalone/apiserver/", "standalone/backup", "standalone/datadir", "standalone/etcd", "standalone/external",
			"standalone/pki", "standalone/progress", "internal/volume", "internal/durable", decidePrefix,
		}, nil, "the API server knows no controller, no node agent and no driver"},
		{"standalone/backup", []string{
			"standalone/datadir", "standalone/etcd", "standalone/external", "internal/durable",
		}, nil, "works on a data directory that no process uses, or on etcd's own copy"},
		{"standalone/external", []string{
			"standalone/etcd", "internal/durable", "internal/volume", decidePrefix,
		}, nil, "keeps keys below a prefix, whatever they are of"},
		{"standalone/etcd", []string{
			"standalone/progress", "internal/durable", decidePrefix,
		}, nil, "keeps keys, whatever they are of"},
		{"standalone/pki", []string{"internal/durable", decidePrefix}, nil, "makes keys and certificates, for anybody"},
		{"standalone/datadir", []string{"internal/durable", "internal/mount"}, nil, "knows " +
			"whose a data directory is, not what is in it"},
		{"standalone/page", []string{
			"internal/volume", "internal/cluster", decidePrefix, explainPrefix, "internal/gather", "internal/program",
		}, nil, "arranges what others answer, and writes nothing"},
		{"standalone/garbage", nil, nil, "deletes by owners, whatever the objects are"},
		{"standalone/progress", nil, nil, "tells how far something is, whatever it is"},
	}
}
