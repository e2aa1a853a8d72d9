// Package driverfile reads and writes the files that say which CSI drivers a host runs. Each driver
// has a file NAME.yaml in one directory, which people may write by hand and keep in git:
//
//	apiVersion: volplane.dev/v1
//	kind: Driver
//	name: hostpath.csi.k8s.io
//	processes:
//	  - roles: [controller, node]
//	    exec: [/usr/local/bin/hostpathplugin, --endpoint=$(CSI_ENDPOINT), --nodeid=$(NODE_NAME)]
//
// What a file names is run as root, so only root or the user of the process may own it, and no
// other user may write to it.
package driverfile
