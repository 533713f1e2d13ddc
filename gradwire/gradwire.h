#pragma once

// All of gradwire for a C++ program.

#include "gradwire/base/error.h"
#include "gradwire/comm/compressed.h"
#include "gradwire/comm/group.h"
#include "gradwire/comm/init.h"
#include "gradwire/comm/role.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/ddp/ddp.h"
#include "gradwire/ddp/join.h"
#include "gradwire/hook/powersgd_options.h"
#include "gradwire/hook/registry.h"
#include "gradwire/optim/grad_scaler.h"
#include "gradwire/rpc/context.h"
#include "gradwire/rpc/distributed_optimizer.h"
#include "gradwire/rpc/remote.h"
#include "gradwire/rpc/remote_module.h"
#include "gradwire/rpc/rpc.h"
